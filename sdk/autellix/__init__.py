"""The Autellix client: importing it instruments this process, and does nothing else."""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument.calls import headers
from autellix._instrument.switch import configure, instrument, start, uninstrument
from autellix._scopes.api import current, detached, program, propagate, session, thread
from autellix._scopes.scope import CurrentIdentity as Identity
from autellix._scopes.scopes import end_program

__all__ = [
    "Identity",
    "Receipt",
    "configure",
    "current",
    "detached",
    "end_program",
    "headers",
    "instrument",
    "program",
    "propagate",
    "receipt",
    "session",
    "status",
    "thread",
    "uninstrument",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autellix._call_receipt import CallReceipt as Receipt


def receipt(result: object) -> Receipt | None:
    """Return the receipt of a call: its ids, waiting, service and tokens; None if there is none.

    Args:
        result: what a client or framework has returned: a whole answer, a stream that has been read to its
            end, a raw HTTP response, a message, a list of messages, or the result of a run of LangChain or
            AutoGen. Of several calls it is the last one's.
    """
    from autellix._call_receipt import find_receipt

    return safely(find_receipt, result)


def status() -> dict[str, Any]:
    """Return whether the client is on, its backends and sessions, and which libraries it has patched.

    Returns:
        `is_on`; `has_reached`, whether a call has carried an identity; `configured`, the addresses that get
        headers, empty for those that answer as Autellix; `backends`, with `has_answered` (whether a call's
        answer carried the mark) and `sessions` (`id`, `is_running`, `failures` since the last success);
        `libraries`, the patched modules that are loaded; `missing`, methods that they lack.
    """
    from autellix._instrument.status import describe

    return describe()


def __getattr__(name: str) -> Any:
    if name == "Receipt":
        # Late, as below: dataclasses are slow to load.
        from autellix._call_receipt import CallReceipt

        return CallReceipt
    if name == "__version__":
        # Late: the metadata of packages takes longer to read than the rest of the import.
        from importlib.metadata import version

        return version("autellix")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


start()
del start
