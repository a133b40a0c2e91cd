"""LangChain and LangGraph integration of the Autellix client: each root run of a chain or graph is a program.

`import autellix` installs it as soon as LangChain is imported. Without that, or to be explicit:

    graph.invoke(inputs, config={"callbacks": [AutellixCallback()]})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from autellix.integration import Patches
    from autellix_langchain._callback import AutellixCallback

__all__ = ["AutellixCallback", "instrument"]


def instrument(patches: Patches, module: ModuleType) -> None:
    """Give every callback manager a handler; called with `langchain_core.callbacks.base`, once imported."""
    from autellix_langchain import _automatic

    _automatic.instrument(patches, module)


def __getattr__(name: str) -> object:
    # Not imported with the package, which may be loaded in the middle of LangChain's own import.
    if name == "AutellixCallback":
        from autellix_langchain._callback import AutellixCallback

        return AutellixCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Last, because the client calls `instrument` at once if LangChain has been imported.
import autellix  # noqa: E402, F401 - using this package switches the client on
