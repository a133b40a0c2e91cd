"""Links what runs in other processes to the strand that sent it there, by a passport that is pickled along.

Unpickling it imports this module, and so instruments the other process, also where its main module does not
import the client itself. The program stays that of the process that began it: only that process ends it.
"""

from __future__ import annotations

import functools
import itertools

from autellix import _scope
from autellix._safely import safely
from autellix._session import control, end_at_exit
from autellix._spawn import Job, Jobs, make_mute
from autellix._strand import Passport, Strand, Trail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._patching import Patches

PASSPORT = "_autellix_passport"


class Answer:
    """What a job in another process returned, with what it came to, for the job of this number here."""

    __slots__ = ("number", "trail", "value")

    def __init__(self, value: Any, trail: tuple[Any, ...], number: int) -> None:
        self.value = value
        self.trail = trail
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return Answer, (self.value, self.trail, self.number)


class Abroad:
    """A function that runs in another process, as a branch of the strand that sent it.

    With a number its calls come back with its result, so that they become parents of the sender's next call.
    """

    __slots__ = ("function", "number", "passport")

    def __init__(
        self, passport: tuple[Any, ...], function: Callable[..., Any], number: int | None = None
    ) -> None:
        self.passport = passport
        self.function = function
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return Abroad, (tuple(self.passport), self.function, self.number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        strand = safely(enter, self.passport)
        if strand is None:
            return self.function(*args, **kwargs)
        try:
            value = Job(strand, self.function)(*args, **kwargs)
        finally:
            safely(_leave, strand)
        trail = None if self.number is None else safely(strand.trail)
        if trail is None or self.number is None or trail.frontier == trail.inherited:
            return value
        return Answer(value, tuple(trail), self.number)


def enter(fields: tuple[Any, ...]) -> Strand:
    """Return the strand for what runs here under a passport."""
    passport = Passport(*fields)
    program = _scope.admit(passport)
    session = None
    if passport.session_id is not None:
        # Its own process ends it.
        session = control().open_session(passport.session_id, ends=False)
    return Strand(program, passport.frontier, session)


def _leave(strand: Strand) -> None:
    _scope.close_program(strand.program, None)
    if strand.session is not None:
        control().close_session(strand.session)


class Senders:
    """The strands that wait for results from other processes, by the number of the job."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Strand] = {}

    def expect(self, strand: Strand) -> int:
        """Return the number of a job that this strand is about to send."""
        number = next(self._numbers)
        self._waiting[number] = strand
        return number

    def forget(self, number: int) -> None:
        """Give up on a job that has ended."""
        self._waiting.pop(number, None)

    def receive(self, answer: Answer) -> None:
        """Let the sender's next call come after the job's."""
        strand = self._waiting.pop(answer.number, None)
        if strand is not None:
            strand.follow(Trail(*answer.trail))


senders = Senders()


def _make_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        sent = safely(_send, fn) if _scope.is_on() else None
        was_mute = _scope.set_mute(True)
        try:
            if sent is None:
                return original(self, fn, *args, **kwargs)
            job, number = sent
            future = original(self, job, *args, **kwargs)
        finally:
            _scope.set_mute(was_mute)
        future.add_done_callback(lambda _: senders.forget(number))
        return future

    return submit


def _send(function: Callable[..., Any]) -> tuple[Abroad, int]:
    strand = _scope.current_strand()
    number = senders.expect(strand)
    return Abroad(_scope.issue_passport(strand), function, number), number


def _make_set_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_result(self: Any, result: Any) -> None:
        if isinstance(result, Answer):
            safely(senders.receive, result)
            result = result.value
        original(self, result)

    return set_result


def _make_process_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> None:
        if _scope.is_on() and not _scope.is_mute():
            safely(_attach_passport, self)
        original(self)

    return start


def _attach_passport(process: Any) -> None:
    setattr(process, PASSPORT, Carried(_passport_of_deserter()))


def _passport_of_deserter() -> tuple[Any, ...]:
    """Issue a passport for what never tells its calls: parents listed from here on are not complete."""
    strand = _scope.current_strand()
    strand.is_truncated = True
    return tuple(_scope.issue_passport(strand))


class Carried:
    """A passport on a process object; unpickling it imports the client there."""

    __slots__ = ("passport",)

    def __init__(self, passport: tuple[Any, ...]) -> None:
        self.passport = passport

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self.passport,)


def _make_bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        carried = getattr(self, PASSPORT, None)
        strand = None if carried is None else safely(enter, carried.passport)
        if strand is not None:
            _scope.swap(strand)
        try:
            return original(self, *args, **kwargs)
        finally:
            # A forked process leaves without its exit functions.
            safely(end_at_exit)

    return _bootstrap


def _make_pool_call(original: Callable[..., Any], thread_pool: type) -> Callable[..., Any]:
    """Wrap a method of pools of threads or processes whose first argument is the function to run."""

    @functools.wraps(original)
    def call(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _scope.is_on() and not isinstance(func, Jobs | Abroad):
            link = _link_to_threads if isinstance(self, thread_pool) else _link_to_processes
            func = safely(link, func) or func
        return original(self, func, *args, **kwargs)

    return call


def _link_to_threads(function: Callable[..., Any]) -> Callable[..., Any]:
    return Jobs(_scope.branch_of(_scope.current_strand()), function)


def _link_to_processes(function: Callable[..., Any]) -> Callable[..., Any]:
    return Abroad(_passport_of_deserter(), function)


def instrument_process_pool(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of `ProcessPoolExecutor`."""
    future = module._base.Future
    if not hasattr(future.set_result, "__wrapped__"):
        # For good: a job that is under way when the client is switched off must still give its plain result.
        future.set_result = _make_set_result(future.set_result)
    patches.apply(module.ProcessPoolExecutor, "submit", _make_submit)


def instrument_processes(patches: Patches, module: ModuleType) -> None:
    """Link the processes of `multiprocessing`, however they are started."""
    patches.apply(module.BaseProcess, "start", _make_process_start)
    patches.apply(module.BaseProcess, "_bootstrap", _make_bootstrap)


def instrument_multiprocessing_pool(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of `multiprocessing.pool`, of threads and of processes."""
    patches.apply(module.Pool, "__init__", make_mute)
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patches.apply(module.Pool, name, functools.partial(_make_pool_call, thread_pool=module.ThreadPool))
