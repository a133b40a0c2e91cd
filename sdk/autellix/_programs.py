"""Owns the scopes that a user opens, `program`, `thread` and `session`, and `propagate` for others."""

from __future__ import annotations

import functools
import sys

from autellix import _scope
from autellix._safely import safely
from autellix._session import control, current_session
from autellix._spawn import Jobs
from autellix._strand import Strand
from autellix_wire import check_id
from autellix_wire.ids import MAX_ID_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    from autellix._strand import Program

    F = TypeVar("F", bound=Callable[..., Any])


class Identity:
    """Who a call made here and at this moment would be."""

    __slots__ = ("is_implicit", "name", "program_id", "session_id", "thread_id")

    def __init__(self, strand: Strand) -> None:
        self.program_id = strand.program.program_id
        self.name = strand.program.name
        self.is_implicit = strand.program.is_implicit
        self.thread_id = strand.thread_id
        self.session_id = (strand.session or current_session()).session_id

    def __repr__(self) -> str:
        return f"Identity(program_id={self.program_id!r}, name={self.name!r}, thread_id={self.thread_id})"


def current() -> Identity:
    """Return the program, thread and session that a call made here would carry."""
    return Identity(_scope.current_strand())


def program(
    name: str | None = None,
    id: str | None = None,  # noqa: A002 - the word users expect
    *,
    expected_calls: int | None = None,
    expected_tokens: int | None = None,
    ends: bool = True,
) -> ProgramScope:
    """Mark calls as one program, as `with`, `async with`, or decorator of any kind of function.

    Args:
        name: its class, such as "react"; programs of one class behave alike.
        id: its id, if you have one already; without it every entry is another program.
        expected_calls: how many calls you expect it to make, for the policy `hinted`; a rough number helps.
        expected_tokens: how many tokens you expect its calls to generate in all, likewise.
        ends: whether leaving its last scope ends it; False if another turn with the same id may follow.

    Raises:
        ValueError: if the id breaks the wire rules (1 to 256 printable ASCII characters), or an expectation
            is not a whole number above zero.
    """
    return ProgramScope(name, id, expected_calls=expected_calls, expected_tokens=expected_tokens, ends=ends)


def thread(name: str | None = None) -> ThreadScope:
    """Mark calls as made by one thread of the program in force, such as one agent of a team.

    Branches (threads, tasks, jobs) are threads by themselves; this is for a role that several of them play
    in turn, or that one line of control plays for a while. The order of calls stays that of the code.

    Args:
        name: the same name is the same thread in all of the program; without it every entry is another one.
    """
    return ThreadScope(name)


def session(
    id: str | None = None,  # noqa: A002 - the word users expect
    *,
    ends: bool = True,
) -> SessionScope:
    """Group the programs inside into one session, such as a conversation, instead of the process's own.

    Args:
        id: its id; scopes of one id are one session. Without it every entry is another session.
        ends: whether leaving its last scope ends it; False if it may be continued, by scopes of the same id.

    Raises:
        ValueError: if the id breaks the wire rules (1 to 256 printable ASCII characters).
    """
    return SessionScope(id, ends=ends)


def propagate(function: F) -> F:
    """Let a function run as a branch of the strand in force now, wherever and however often it is called.

    For what the client does not follow by itself: queues of work, callbacks of foreign libraries.
    """
    import inspect

    runs = Jobs(_scope.branch_of(_scope.current_strand()), function)

    if inspect.iscoroutinefunction(function):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            strand = runs.branch()
            before = _scope.swap(strand)
            try:
                return await function(*args, **kwargs)
            finally:
                strand.is_closed = True
                _scope.swap(before)

        _scope.BOUNDARIES.add(run_async.__code__)
        return functools.update_wrapper(run_async, function)  # type: ignore[return-value]

    def run(*args: Any, **kwargs: Any) -> Any:
        return runs(*args, **kwargs)

    return functools.update_wrapper(run, function)  # type: ignore[return-value]


class Scope:
    """A block or a function whose calls belong together; any number of threads may enter it at once.

    Subclasses say what is put in force on the way in, and what its end means.
    """

    def __init__(self) -> None:
        self._entered: list[Strand] = []

    def _open(self, previous: Strand | None) -> Strand:
        raise NotImplementedError

    def _close(self, strand: Strand) -> None:
        """Do what the end of the scope means beyond taking it out of force."""

    def enter_at(self, frame: FrameType | None) -> Strand:
        """Open the scope for the code that runs at a frame."""
        strand = self._open(_scope.top())
        _scope.push(strand, frame)
        self._entered.append(strand)
        return strand

    def leave(self, strand: Strand) -> None:
        """Close what `enter_at` has opened."""
        self._entered.remove(strand)
        _scope.pull(strand)
        self._close(strand)

    def __enter__(self) -> Identity:
        return Identity(self.enter_at(sys._getframe(1)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        top = _scope.top()
        # Usually the innermost scope here; one entered elsewhere, or left out of order, is closed too.
        self.leave(top if top is not None and top in self._entered else self._entered[-1])

    async def __aenter__(self) -> Identity:
        return Identity(self.enter_at(sys._getframe(1)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Open the scope around every run of the function."""
        import inspect

        if inspect.isasyncgenfunction(function):
            wrapper = self._wrap_async_generator(function)
        elif inspect.iscoroutinefunction(function):
            wrapper = self._wrap_coroutine(function)
        elif inspect.isgeneratorfunction(function):
            wrapper = self._wrap_generator(function)
        else:
            wrapper = self._wrap_function(function)
        return functools.update_wrapper(wrapper, function)  # type: ignore[return-value]

    # The wrappers do not use `with self`: one scope serves all runs of the function, and each leaves its own.

    def _wrap_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            strand = self.enter_at(sys._getframe())
            try:
                return function(*args, **kwargs)
            finally:
                self.leave(strand)

        return run

    def _wrap_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            strand = self.enter_at(sys._getframe())
            try:
                return await function(*args, **kwargs)
            finally:
                self.leave(strand)

        return run

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            strand = self.enter_at(sys._getframe())
            try:
                # Not `yield from`: closing this generator would then close the inner one off this frame.
                generator = function(*args, **kwargs)
                step = functools.partial(generator.send, None)
                while True:
                    try:
                        value = step()
                    except StopIteration as stop:
                        return stop.value
                    try:
                        sent = yield value
                    except GeneratorExit:
                        generator.close()
                        raise
                    except BaseException as error:  # noqa: BLE001 - handed to the user's generator, as `yield from` does
                        step = functools.partial(generator.throw, error)
                    else:
                        step = functools.partial(generator.send, sent)
            finally:
                self.leave(strand)

        return run

    def _wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            strand = self.enter_at(sys._getframe())
            try:
                generator = function(*args, **kwargs)
                step = functools.partial(generator.asend, None)
                while True:
                    try:
                        value = await step()
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield value
                    except GeneratorExit:
                        await generator.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001 - handed to the user's generator, as `yield from` does
                        step = functools.partial(generator.athrow, error)
                    else:
                        step = functools.partial(generator.asend, sent)
            finally:
                self.leave(strand)

        return run


class ProgramScope(Scope):
    """What `program` returns."""

    def __init__(
        self,
        name: str | None,
        program_id: str | None,
        *,
        expected_calls: int | None = None,
        expected_tokens: int | None = None,
        ends: bool = True,
        is_implicit: bool = False,
    ) -> None:
        super().__init__()
        self._name = None if name is None else printable(name)
        self._program_id = None if program_id is None else check_id(program_id, "id")
        self._expected_calls = _above_zero(expected_calls, "expected_calls")
        self._expected_tokens = _above_zero(expected_tokens, "expected_tokens")
        self._ends = ends
        self._is_implicit = is_implicit

    def _open(self, previous: Strand | None) -> Strand:
        program = _scope.open_program(self._name, self._program_id, ends=self._ends)
        program.expected_calls = self._expected_calls or program.expected_calls
        program.expected_tokens = self._expected_tokens or program.expected_tokens
        program.is_implicit = self._is_implicit
        session = None if previous is None else previous.session
        return Strand(program, program.trail, session).stand_on(previous)

    def _close(self, strand: Strand) -> None:
        if _scope.close_program(strand.program, strand.gather()):
            safely(announce_end, strand.program)


class ThreadScope(Scope):
    """What `thread` returns."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self._name = name

    def _open(self, previous: Strand | None) -> Strand:
        parent = previous or _scope.current_strand()
        number = None if self._name is None else parent.program.number_of(self._name)
        # A branch that its parent waits for: once it is closed, the parent's next call comes after its calls.
        return _scope.branch_of(parent).stand_on(parent, number)


class SessionScope(Scope):
    """What `session` returns."""

    def __init__(self, session_id: str | None, *, ends: bool = True) -> None:
        super().__init__()
        self._session_id = None if session_id is None else check_id(session_id, "id")
        self._ends = ends

    def _open(self, previous: Strand | None) -> Strand:
        parent = previous or _scope.current_strand()
        strand = _scope.branch_of(parent).stand_on(parent, parent.thread_id)
        strand.session = control().open_session(self._session_id, ends=self._ends)
        return strand

    def _close(self, strand: Strand) -> None:
        if strand.session is not None:
            control().close_session(strand.session)


def root_scope(
    name: str | None, program_id: str | None = None, *, ends: bool = True, is_implicit: bool = False
) -> ProgramScope | None:
    """Return the scope for a framework's run, or None if it runs inside a program that has been named."""
    if not _scope.current_strand().program.is_implicit:
        return None
    return ProgramScope(name, program_id, ends=ends, is_implicit=is_implicit)


def end_program(program_id: str) -> None:
    """End a program of several turns, of which no scope is open; without such a program this does nothing.

    Raises:
        ValueError: if the id breaks the wire rules.
    """
    program = _scope.end_lasting(check_id(program_id, "program_id"))
    if program is not None:
        safely(announce_end, program)


def announce_end(program: Program) -> None:
    """Tell the backends that saw a program that it is over."""
    for backend in program.origins:
        control().end_program(backend, program.program_id)


def _above_zero(value: int | None, field: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{field} is {value!r}; expected a whole number above zero")
    return value


def printable(name: str) -> str:
    """Write a name as a header can carry it: what is not printable ASCII becomes %XX."""
    if name.isascii() and name.isprintable():
        return name.strip()[:MAX_ID_BYTES]
    from urllib.parse import quote

    return quote(name.strip(), safe=" !#$&'()*+,/:;=?@[]")[:MAX_ID_BYTES]
