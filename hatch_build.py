"""Hatchling's hook that gives the package the README with whole links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/autellix/autellix"


class ReadmeHook(MetadataHookInterface):
    """Gives the package the README, whose links lead into the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_whole_links(text)}


def with_whole_links(markdown: str) -> str:
    """Return Markdown whose relative links and pictures are those of the repository's main branch."""
    pictures = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{REPOSITORY}/raw/main/", markdown)
    return re.sub(r"((?<!!)\[[^\[\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{REPOSITORY}/blob/main/", pictures)
