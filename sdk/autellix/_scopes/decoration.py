"""Enters a scope around every run of a function of any kind; loaded with the first decorated function.

The wrappers do not use `with scope`: one scope serves all runs of the function, and each leaves its own.
"""

from __future__ import annotations

import functools
import inspect
import sys
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from types import FrameType
    from typing import Any, Protocol, TypeVar

    from autellix._programs.thread import ProgramThread

    F = TypeVar("F", bound=Callable[..., Any])

    class Enterable(Protocol):
        """A scope, as the wrappers use it."""

        def enter_at(self, frame: FrameType | None) -> ProgramThread | None: ...
        def leave(self, thread: ProgramThread | None) -> None: ...


def decorate(scope: Enterable, function: F) -> F:
    """Return a function whose every run enters the scope.

    Raises:
        TypeError: if it is not a function, such as a class.
    """
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorate(scope, function.__func__))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"a scope cannot decorate a {type(function).__name__}; expected a function")
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator(scope, function)
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine(scope, function)
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(scope, function)
    else:
        wrapper = _wrap_function(scope, function)
    return functools.update_wrapper(_defined_beside(function, wrapper), function)  # type: ignore[return-value]


def _defined_beside(function: Callable[..., Any], wrapper: FunctionType) -> Callable[..., Any]:
    """Return the wrapper with the function's globals: AutoGen, for one, resolves annotations there.

    So the wrappers use no globals of this module.
    """
    names = getattr(inspect.unwrap(function), "__globals__", None)
    if names is None:
        return wrapper
    return FunctionType(wrapper.__code__, names, wrapper.__name__, None, wrapper.__closure__)


def _wrap_function(scope: Enterable, function: Callable[..., Any]) -> FunctionType:
    get_frame, wrap_result = sys._getframe, _wrap_result

    def run(*args: Any, **kwargs: Any) -> Any:
        thread = scope.enter_at(get_frame())
        try:
            result = function(*args, **kwargs)
        finally:
            scope.leave(thread)
        return wrap_result(scope, result)

    return run  # type: ignore[return-value]


def _wrap_result(scope: Enterable, result: Any) -> Any:
    """Return a result; one that is work yet to be done will run in the scope, entered anew."""
    kind = type(result)
    if kind is CoroutineType:
        return _wrap_coroutine(scope, lambda: result)()
    if kind is GeneratorType:
        return _wrap_generator(scope, lambda: result)()
    if kind is AsyncGeneratorType:
        return _wrap_async_generator(scope, lambda: result)()
    return result


def _wrap_coroutine(scope: Enterable, function: Callable[..., Any]) -> FunctionType:
    get_frame = sys._getframe

    async def run(*args: Any, **kwargs: Any) -> Any:
        thread = scope.enter_at(get_frame())
        try:
            return await function(*args, **kwargs)
        finally:
            scope.leave(thread)

    return run  # type: ignore[return-value]


def _wrap_generator(scope: Enterable, function: Callable[..., Any]) -> FunctionType:
    get_frame, partial = sys._getframe, functools.partial

    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        thread = scope.enter_at(get_frame())
        try:
            # Not `yield from`: closing this generator would then close the inner one off this frame.
            generator = function(*args, **kwargs)
            step = partial(generator.send, None)
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
                    step = partial(generator.throw, error)
                else:
                    step = partial(generator.send, sent)
        finally:
            scope.leave(thread)

    return run  # type: ignore[return-value]


def _wrap_async_generator(scope: Enterable, function: Callable[..., Any]) -> FunctionType:
    get_frame, partial = sys._getframe, functools.partial

    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        thread = scope.enter_at(get_frame())
        try:
            generator = function(*args, **kwargs)
            step = partial(generator.asend, None)
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
                    step = partial(generator.athrow, error)
                else:
                    step = partial(generator.asend, sent)
        finally:
            scope.leave(thread)

    return run  # type: ignore[return-value]
