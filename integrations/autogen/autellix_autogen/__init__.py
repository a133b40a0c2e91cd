"""The AutoGen integration of Autellix: a team is a program, an agent a thread, and messages order the calls.

`import autellix` installs it after the import of AutoGen. `AutellixChatCompletionClient` is for direct use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import autellix  # noqa: F401 - importing this package switches the client on

if TYPE_CHECKING:
    from autellix_autogen._client import AutellixChatCompletionClient

__all__ = ["AutellixChatCompletionClient"]


def __getattr__(name: str) -> object:
    # Imported late: this package may be loaded in the middle of AutoGen's own import.
    if name == "AutellixChatCompletionClient":
        from autellix_autogen._client import AutellixChatCompletionClient

        return AutellixChatCompletionClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
