"""Runs functions in other processes as branches of the program thread that sent them.

The process that opened a program owns it, and only that process ends it.
"""

from __future__ import annotations

import itertools

from autellix._faults import safely
from autellix._programs.branches import BranchCall
from autellix._programs.registry import programs
from autellix._programs.running import running_thread
from autellix._programs.thread import ProgramThread
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from autellix._programs.context import Progress, RemoteContext


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
        finally:
            safely(_leave, thread)
        progress = None if self.job is None else safely(thread.progress)
        if progress is None or self.job is None or progress.frontier == progress.inherited:
            return value
        return RemoteResult(value, progress, self.job)


class RemoteResult:
    """The result of a job in another process, with its progress."""

    def __init__(self, value: Any, progress: Progress, job: int) -> None:
        self.value = value
        self.progress = progress
        self.job = job


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
        return RemoteFunction(thread.remote_context(), function, job)

    def discard(self, sent: RemoteFunction) -> None:
        self._senders.pop(sent.job, None)

    def receive(self, result: RemoteResult) -> None:
        """Let the sender's next call depend on the job's calls."""
        thread = self._senders.pop(result.job, None)
        if thread is not None:
            thread.follow(result.progress)


remote_jobs = RemoteJobs()


def context_without_return() -> RemoteContext:
    """Return a context for work whose calls never return: the parents listed from here on are truncated."""
    thread = running_thread()
    thread.is_truncated = True
    return thread.remote_context()


def enter_remote(context: RemoteContext) -> ProgramThread:
    """Return the program thread of work that another process has sent here."""
    program = programs.open_remote(context)
    session = None
    if context.session_id is not None:
        # The process that opened the session ends it.
        session = keeper().open(context.session_id, ends=False)
    return ProgramThread(program, context.frontier, session)


def _leave(thread: ProgramThread) -> None:
    programs.close(thread.program, None)
    if thread.session is not None:
        keeper().close(thread.session)
