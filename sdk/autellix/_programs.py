"""Owns `program`: marks the calls of a block or of a function as one program."""

from __future__ import annotations

import functools
from contextlib import contextmanager

from autellix import _scope
from autellix._safely import safely
from autellix._session import current_session
from autellix_wire import check_id
from autellix_wire.ids import MAX_ID_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator
    from types import TracebackType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


class Identity:
    """Who a call made here and at this moment would be."""

    __slots__ = ("is_implicit", "name", "program_id", "session_id", "thread_id")

    def __init__(self, strand: _scope.Strand) -> None:
        self.program_id = strand.program.program_id
        self.name = strand.program.name
        self.is_implicit = strand.program.is_implicit
        self.thread_id = strand.thread_id
        self.session_id = current_session().session_id

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
) -> ProgramScope:
    """Mark calls as one program, as `with`, `async with`, or decorator of any kind of function.

    Args:
        name: its class, such as "react"; programs of one class behave alike.
        id: its id, if you have one already; without it every entry is another program.
        expected_calls: how many calls you expect it to make, for the policy `hinted`; a rough number helps.
        expected_tokens: how many tokens you expect its calls to generate in all, likewise.

    Raises:
        ValueError: if the id breaks the wire rules (1 to 256 printable ASCII characters), or an expectation
            is not a whole number above zero.
    """
    return ProgramScope(name, id, expected_calls, expected_tokens)


class ProgramScope:
    """What `program` returns: it may be entered any number of times, in any number of threads."""

    def __init__(
        self,
        name: str | None,
        program_id: str | None,
        expected_calls: int | None = None,
        expected_tokens: int | None = None,
    ) -> None:
        self._name = None if name is None else _printable(name)
        self._program_id = None if program_id is None else check_id(program_id, "id")
        self._expected_calls = _above_zero(expected_calls, "expected_calls")
        self._expected_tokens = _above_zero(expected_tokens, "expected_tokens")
        self._entered: list[_scope.Strand] = []

    def __enter__(self) -> Identity:
        strand = self._open(_scope.top())
        _scope.swap(strand)
        self._entered.append(strand)
        return Identity(strand)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        top = _scope.top()
        # Usually the innermost scope here; one entered elsewhere, or left out of order, is closed too.
        strand = top if top is not None and top in self._entered else self._entered[-1]
        self._entered.remove(strand)
        _close(strand)

    async def __aenter__(self) -> Identity:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Make every run of the function a program."""
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

    def _open(self, previous: _scope.Strand | None) -> _scope.Strand:
        program = _scope.open_program(self._name, self._program_id)
        program.expected_calls = self._expected_calls or program.expected_calls
        program.expected_tokens = self._expected_tokens or program.expected_tokens
        return _scope.Strand(program, (), previous=previous)

    def _wrap_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run

    def _wrap_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return run

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            steps = _Steps(self._open(None))
            try:
                return (yield from _drive(steps, function(*args, **kwargs)))
            finally:
                _close(steps.base)

        return run

    def _wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            steps = _Steps(self._open(None))
            generator = function(*args, **kwargs)
            step = functools.partial(generator.asend, None)
            try:
                while True:
                    with steps.running():
                        try:
                            value = await step()
                        except StopAsyncIteration:
                            return
                    try:
                        sent = yield value
                    except GeneratorExit:
                        with steps.running():
                            await generator.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001 - handed to the user's generator, as `yield from` does
                        step = functools.partial(generator.athrow, error)
                    else:
                        step = functools.partial(generator.asend, sent)
            finally:
                _close(steps.base)

        return run


class _Steps:
    """The scope of a generator: in force while it runs, and only then, whoever drives it."""

    def __init__(self, base: _scope.Strand) -> None:
        self.base = base
        self._top: _scope.Strand | None = base

    @contextmanager
    def running(self) -> Iterator[None]:
        before = _scope.swap(self._top)
        try:
            yield
        finally:
            # The generator may be suspended inside scopes of its own: they wait with it.
            self._top = _scope.swap(before)


def _drive(steps: _Steps, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    step = functools.partial(generator.send, None)
    while True:
        with steps.running():
            try:
                value = step()
            except StopIteration as stop:
                return stop.value
        try:
            sent = yield value
        except GeneratorExit:
            with steps.running():
                generator.close()
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the user's generator, as `yield from` does
            step = functools.partial(generator.throw, error)
        else:
            step = functools.partial(generator.send, sent)


def _close(strand: _scope.Strand) -> None:
    """Leave a scope; if its program is over, tell the backends that saw it."""
    strand.is_closed = True
    if _scope.close_program(strand.program):
        safely(_announce_end, strand.program)


def _announce_end(program: _scope.Program) -> None:
    for backend in program.origins:
        current_session().end_program(backend, program.program_id)


def _above_zero(value: int | None, field: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{field} is {value!r}; expected a whole number above zero")
    return value


def _printable(name: str) -> str:
    """Write a name as a header can carry it: what is not printable ASCII becomes %XX."""
    if name.isascii() and name.isprintable():
        return name.strip()[:MAX_ID_BYTES]
    from urllib.parse import quote

    return quote(name.strip(), safe=" !#$&'()*+,/:;=?@[]")[:MAX_ID_BYTES]
