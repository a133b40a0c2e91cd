"""The AutoGen integration of Autellix: a team is a program, an agent a thread, and messages order the calls.

`import autellix` applies it by itself once AutoGen is imported. To use here: `AutellixChatCompletionClient`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from autellix.integration import Patches
    from autellix_autogen._client import AutellixChatCompletionClient

__all__ = ["AutellixChatCompletionClient", "instrument"]


def instrument(patches: Patches, module: ModuleType) -> None:
    """Patch one of AutoGen's packages: its core, the teams or the agents above, or the model client."""
    from autellix_autogen import _runs, _runtime

    instruments = {
        "autogen_agentchat.agents": _runs.instrument_agents,
        "autogen_agentchat.teams": _runs.instrument_teams,
        "autogen_core": _runtime.instrument_core,
        "autogen_ext.models.openai": _runtime.instrument_model_client,
    }
    instruments[module.__name__](patches, module)


def __getattr__(name: str) -> object:
    # Not imported with the package, which is loaded in the middle of the import of AutoGen.
    if name == "AutellixChatCompletionClient":
        from autellix_autogen._client import AutellixChatCompletionClient

        return AutellixChatCompletionClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Last, because the client calls `instrument` at once if AutoGen has been imported.
import autellix  # noqa: E402, F401 - using this package switches the client on
