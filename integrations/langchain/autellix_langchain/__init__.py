"""The LangChain and LangGraph integration of Autellix: each root run of a chain or graph is a program.

`import autellix` installs it after the import of LangChain. To install it explicitly:

    graph.invoke(inputs, config={"callbacks": [AutellixCallback()]})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import autellix  # noqa: F401 - importing this package switches the client on

if TYPE_CHECKING:
    from autellix_langchain._callback import AutellixCallback

__all__ = ["AutellixCallback"]


def __getattr__(name: str) -> object:
    # Imported late: this package may be loaded in the middle of LangChain's own import.
    if name == "AutellixCallback":
        from autellix_langchain._callback import AutellixCallback

        return AutellixCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
