"""Guards user code from faults of the client: they are logged at debug level and never raised."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


def safely(step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Run one of the client's own steps; if it fails, log the error and return None."""
    try:
        return step(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the boundary to user code: no fault of the client may break the caller
        try:
            # Imported only here: logging takes a fifth of the time budget of `import autellix`.
            import logging

            logging.getLogger("autellix").debug("%s failed", getattr(step, "__name__", step), exc_info=True)
        except Exception:  # noqa: BLE001 - at the recursion limit even logging fails
            pass
        return None


def log_debug(message: str, *args: object) -> None:
    import logging

    logging.getLogger("autellix").debug(message, *args)


def log_warning(message: str, *args: object) -> None:
    """Log what the user should know; the caller logs each message once for each process."""
    try:
        import logging

        logging.getLogger("autellix").warning(message, *args)
    except Exception:  # noqa: BLE001 - the boundary to user code: a handler of the user's may fail
        pass
