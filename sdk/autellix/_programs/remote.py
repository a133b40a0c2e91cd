"""Runs functions in other processes as branches of the program thread that sent them.

The process that opened a program owns it, and only that process ends it.
"""

from __future__ import annotations

import itertools

from autellix._faults import safely
from autellix._programs.branches import BranchCall
from autellix._programs.hints import ProgramHints
from autellix._programs.registry import programs
from autellix._programs.running import running_thread
from autellix._programs.thread import ProgramThread
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from autellix._programs.progress import Progress

RESULT_ATTRIBUTE = "_autellix_result"
"""The attribute of an error that returns a job's progress."""


class RemoteContext:
    """The propagation context of work in another process; unpickling it imports the client there."""

    __slots__ = (
        "foreign_ids",
        "frontier",
        "group",
        "is_implicit",
        "name",
        "priority",
        "program_id",
        "session_id",
    )

    def __init__(
        self,
        program_id: str,
        name: str | None,
        session_id: str | None,
        frontier: tuple[str, ...] | None,
        *,
        is_implicit: bool,
        group: str | None = None,
        priority: str | None = None,
        foreign_ids: tuple[str, ...] = (),
    ) -> None:
        self.program_id = program_id
        self.name = name
        self.group = group
        self.session_id = session_id
        self.frontier = frontier
        self.is_implicit = is_implicit
        self.priority = priority
        self.foreign_ids = foreign_ids
        """Programs that the sender has open by an id: a process that opens one of them does not end it."""


class RemoteFunction:
    """A function that runs in another process.

    With a job number its progress returns with its result, and the sender's next call depends on its calls.
    """

    def __init__(self, context: RemoteContext, function: Callable[..., Any], job: int | None = None) -> None:
        self.context = context
        self.function = function
        self.job = job

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        thread = safely(enter_remote, self.context)
        if thread is None:
            return self.function(*args, **kwargs)
        try:
            value = BranchCall(thread, self.function)(*args, **kwargs)
        except BaseException as error:
            safely(self._add_progress, error, thread)
            raise
        finally:
            safely(leave_remote, thread)
        result = safely(self._result, value, thread)
        return value if result is None else result

    def _result(self, value: Any, thread: ProgramThread) -> RemoteResult | None:
        progress = thread.progress()
        if self.job is None or progress.frontier == progress.inherited:
            return None
        return RemoteResult(value, progress, self.job)

    def _add_progress(self, error: BaseException, thread: ProgramThread) -> None:
        # Pickled with the attributes of the error, unless its class leaves them out.
        if (result := self._result(None, thread)) is not None:
            vars(error)[RESULT_ATTRIBUTE] = result


class RemoteResult:
    """The result of a job in another process; unpickling it hands the job's progress to the sender."""

    def __init__(self, value: Any, progress: Progress, job: int) -> None:
        self.value = value
        self.progress = progress
        self.job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self.value, self.progress, self.job)


def _receive(value: Any, progress: Progress, job: int) -> Any:
    safely(remote_jobs.receive, progress, job)
    return value


class RemoteJobs:
    """The program threads that wait for results from other processes, by job number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._senders: dict[int | None, ProgramThread] = {}

    def send(self, function: Callable[..., Any]) -> RemoteFunction:
        """Return the function to send as a new job of the running program thread."""
        thread = running_thread()
        job = next(self._numbers)
        self._senders[job] = thread
        return RemoteFunction(context_of(thread), function, job)

    def discard(self, sent: RemoteFunction) -> None:
        self._senders.pop(sent.job, None)

    def receive(self, progress: Progress, job: int) -> None:
        """Let the sender's next call depend on the job's calls."""
        thread = self._senders.pop(job, None)
        if thread is not None:
            thread.follow(progress)


remote_jobs = RemoteJobs()


def context_of(thread: ProgramThread) -> RemoteContext:
    """Return the propagation context of a thread's branch in another process."""
    program, session = thread.program, thread.open_session()
    return RemoteContext(
        program.program_id,
        program.name,
        None if session is None else session.session_id,
        thread.branch_frontier(),
        is_implicit=program.is_implicit,
        group=program.hints.group,
        priority=program.hints.priority,
        foreign_ids=programs.chosen_ids(),
    )


def context_without_return() -> RemoteContext:
    """Return a context for work whose calls never return: the parents listed from here on are truncated."""
    thread = running_thread()
    thread.is_truncated = True
    return context_of(thread)


def enter_remote(context: RemoteContext) -> ProgramThread:
    """Return the program thread of work that another process has sent here."""
    programs.leave_to_others(context.foreign_ids)
    program = programs.open_remote(context.program_id, context.name, is_implicit=context.is_implicit)
    # Without what it expects, as the process that has opened it counts the calls.
    program.hints = ProgramHints(group=context.group, priority=context.priority).over(program.hints)
    session = None
    if context.session_id is not None:
        # The process that opened the session ends it.
        session = keeper.open(context.session_id, ends=False)
    return ProgramThread(program, context.frontier, session)


def leave_remote(thread: ProgramThread) -> None:
    """Leave what `enter_remote` has entered."""
    programs.close(thread.program)
    if thread.session is not None:
        keeper.close(thread.session)
