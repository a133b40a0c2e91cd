"""The Autellix client: once it is imported, the calls of this process carry their program to a gateway.

    import autellix
    from openai import OpenAI

    client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")

    with autellix.program("research"):  # all calls in this block are one program
        with autellix.thread("planner"):  # one role inside it
            answer = client.chat.completions.create(...)

    print(autellix.receipt(answer))  # what the call has waited for and cost
    print(autellix.status())  # which backends and libraries the client knows

The run of an agent framework, and the request of a web framework, is a program without a block. Guide:
https://github.com/autellix/autellix/blob/main/docs/guides/sdk.md
"""

from __future__ import annotations

from autellix._faults import safely
from autellix._instrument.calls import headers
from autellix._instrument.switch import configure, instrument, start, uninstrument
from autellix._scopes.api import current, detached, program, propagate, session, thread
from autellix._scopes.scope import Identity

__all__ = [
    "Identity",
    "Receipt",
    "Status",
    "configure",
    "current",
    "detached",
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

    from autellix._call_receipt import Receipt
    from autellix._instrument.status import Status


def receipt(result: object) -> Receipt | None:
    """Return the receipt of a call: its ids, waiting, service and tokens; None if there is none.

    Args:
        result: what a client or framework has returned: a whole answer, a stream that has been read to its
            end, a raw HTTP response, a message, a list of messages, or the result of a run of LangChain or
            AutoGen. Of several calls it is the last one's.
    """
    from autellix._call_receipt import find_receipt

    return safely(find_receipt, result)


def status() -> Status:
    """Return whether the client is on, its backends and sessions, and which libraries it has patched."""
    from autellix._instrument.status import describe

    return describe()


def __dir__() -> list[str]:
    return [*globals(), "Receipt", "Status"]


def __getattr__(name: str) -> Any:
    # Late, because dataclasses are slow to load, and so is the metadata of packages.
    if name == "Receipt":
        from autellix._call_receipt import Receipt

        return Receipt
    if name == "Status":
        from autellix._instrument.status import Status

        return Status
    if name == "end_program":
        from autellix._scopes.api import warn_of_old
        from autellix._scopes.scopes import end_program

        warn_of_old("autellix.end_program()", "a last `with autellix.program(id=...)` without `continues`")
        return end_program
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("autellix")
        except PackageNotFoundError as error:
            raise AttributeError("the client is not installed, but imported from its sources") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


start()
del start
