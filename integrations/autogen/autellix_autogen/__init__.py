"""The AutoGen integration of Autellix: a team is a program, an agent a thread, and messages order the calls.

`import autellix` installs it after the import of AutoGen. `AutellixChatCompletionClient` is for direct use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from autellix.integration import Patches
    from autellix_autogen._client import AutellixChatCompletionClient

__all__ = ["AutellixChatCompletionClient", "instrument"]


def instrument(patches: Patches, module: ModuleType) -> None:
    """Patch one of AutoGen's packages: the core, teams, agents, or the model client."""
    from autellix_autogen import _runtime, _teams

    instruments = {
        "autogen_agentchat.agents": _teams.instrument_agents,
        "autogen_agentchat.teams": _teams.instrument_teams,
        "autogen_core": _runtime.instrument_core,
        "autogen_ext.models.openai": _runtime.instrument_model_client,
    }
    instruments[module.__name__](patches, module)


def __getattr__(name: str) -> object:
    # Imported late: this package may be loaded in the middle of AutoGen's own import.
    if name == "AutellixChatCompletionClient":
        from autellix_autogen._client import AutellixChatCompletionClient

        return AutellixChatCompletionClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Last, because the client calls `instrument` at once if AutoGen has been imported.
import autellix  # noqa: E402, F401 - importing this package switches the client on
