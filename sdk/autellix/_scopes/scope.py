"""Defines what all scopes share: entering and leaving, as a block or around a function of any kind."""

from __future__ import annotations

import functools
import sys
from types import AsyncGeneratorType, CoroutineType, GeneratorType

from autellix._faults import safely
from autellix._programs.registry import programs
from autellix._programs.running import enter, find_running_thread, leave, running_thread
from autellix._programs.thread import ProgramThread
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


class CurrentIdentity:
    """The identity of a call made here and now."""

    __slots__ = ("is_implicit", "name", "program_id", "session_id", "thread_id")

    def __init__(self, thread: ProgramThread) -> None:
        self.program_id = thread.program.program_id
        self.name = thread.program.name
        self.is_implicit = thread.program.is_implicit
        self.thread_id = thread.thread_id
        self.session_id = (thread.open_session() or keeper.process_session).session_id

    def __repr__(self) -> str:
        return f"Identity(program_id={self.program_id!r}, name={self.name!r}, thread_id={self.thread_id})"


def identity_of(thread: ProgramThread | None) -> CurrentIdentity:
    """Return the identity of calls in a program thread, or in the running one for None."""
    return CurrentIdentity(thread or safely(running_thread) or ProgramThread(programs.implicit, None))


class Scope:
    """A block or a function whose calls belong together; any number of threads may enter it at once."""

    def __init__(self) -> None:
        self._entered: list[ProgramThread] = []

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has not been entered there.
        return {**vars(self), "_entered": []}

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        """Return the program thread that runs inside."""
        raise NotImplementedError

    def _close(self, thread: ProgramThread) -> None:
        """Release what `_open` has opened."""

    def enter_at(self, frame: FrameType | None) -> ProgramThread | None:
        """Enter the scope for the code that runs at a frame; None if that fails, which changes nothing."""
        return safely(self._enter_at, frame)

    def _enter_at(self, frame: FrameType | None) -> ProgramThread:
        thread = self._open(find_running_thread())
        enter(thread, frame)
        self._entered.append(thread)
        return thread

    def leave(self, thread: ProgramThread | None) -> None:
        """Leave what `enter_at` has entered."""
        if thread is not None:
            safely(self._leave, thread)

    def _leave(self, thread: ProgramThread) -> None:
        self._entered.remove(thread)
        leave(thread)
        self._close(thread)

    def _leave_innermost(self) -> None:
        running = find_running_thread()
        # Usually the innermost scope here; it may also have been entered elsewhere, or be left out of order.
        self._leave(running if running is not None and running in self._entered else self._entered[-1])

    def __enter__(self) -> CurrentIdentity:
        return identity_of(self.enter_at(sys._getframe(1)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        safely(self._leave_innermost)

    async def __aenter__(self) -> CurrentIdentity:
        return identity_of(self.enter_at(sys._getframe(1)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Enter the scope around every run of the function.

        Raises:
            TypeError: if it is not a function, such as a class.
        """
        import inspect

        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"a scope cannot decorate a {type(function).__name__}; expected a function")
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
            thread = self.enter_at(sys._getframe())
            try:
                result = function(*args, **kwargs)
            finally:
                self.leave(thread)
            return self._wrap_result(result)

        return run

    def _wrap_result(self, result: Any) -> Any:
        """Return a result; one that is work yet to be done will run in the scope, entered anew."""
        kind = type(result)
        if kind is CoroutineType:
            return self._wrap_coroutine(lambda: result)()
        if kind is GeneratorType:
            return self._wrap_generator(lambda: result)()
        if kind is AsyncGeneratorType:
            return self._wrap_async_generator(lambda: result)()
        return result

    def _wrap_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            thread = self.enter_at(sys._getframe())
            try:
                return await function(*args, **kwargs)
            finally:
                self.leave(thread)

        return run

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            thread = self.enter_at(sys._getframe())
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
                    except BaseException as error:  # noqa: BLE001 - thrown into the user's generator, as `yield from` does
                        step = functools.partial(generator.throw, error)
                    else:
                        step = functools.partial(generator.send, sent)
            finally:
                self.leave(thread)

        return run

    def _wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            thread = self.enter_at(sys._getframe())
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
                    except BaseException as error:  # noqa: BLE001 - thrown into the user's generator, as `yield from` does
                        step = functools.partial(generator.athrow, error)
                    else:
                        step = functools.partial(generator.asend, sent)
            finally:
                self.leave(thread)

        return run
