"""The one place where a fault of the client's own is caught: logged at debug, never raised into user code."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


def safely(step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Run one step of ours; if it fails, log the fault and return None."""
    try:
        return step(*args, **kwargs)
    except Exception:  # the boundary to user code: nothing of ours may break the caller
        # Imported on a fault only: logging is a fifth of the time that `import autellix` may take.
        import logging

        logging.getLogger("autellix").debug("%s failed", getattr(step, "__name__", step), exc_info=True)
        return None


def note(message: str, *args: object) -> None:
    """Log one line at debug level."""
    import logging

    logging.getLogger("autellix").debug(message, *args)
