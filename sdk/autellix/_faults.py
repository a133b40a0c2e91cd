"""Guards user code from faults of the client: they are logged at debug level and never raised."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


def safely(step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Run one of the client's own steps; if it fails, log the error and return None.

    What a signal handler of the user's raises meanwhile, such as the time limit of a job, passes through.
    """
    try:
        return step(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the boundary to user code: no fault of the client may break the caller
        try:
            _report(step, error)
        except Exception as raised:
            # At the recursion limit even logging fails.
            if raised is error:
                raise
        return None


def _report(step: Callable[..., object], error: Exception) -> None:
    if _is_interruption(error):
        raise error
    # Imported only here: logging takes a fifth of the time budget of `import autellix`.
    import logging

    logging.getLogger("autellix").debug("%s failed", getattr(step, "__name__", step), exc_info=error)


def _is_interruption(error: BaseException) -> bool:
    """Return whether a signal handler has raised an error, in the middle of whatever was running."""
    signal = sys.modules.get("signal")
    if signal is None:
        # Nobody has set a handler.
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in range(1, signal.NSIG)} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of a functools.partial
    function = getattr(function, "__func__", function)  # of a method
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its code is wanted
    code: CodeType | None = getattr(function, "__code__", None)
    return code


def log_debug(message: str, *args: object) -> None:
    import logging

    logging.getLogger("autellix").debug(message, *args)


def log_warning(message: str, *args: object) -> None:
    """Log what the user should know; the caller logs each message once for each process."""
    safely(_warn, message, *args)


def _warn(message: str, *args: object) -> None:
    import logging

    logging.getLogger("autellix").warning(message, *args)
