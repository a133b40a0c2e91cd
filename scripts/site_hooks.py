"""Hooks of the documentation site: links that leave docs/ go to the repository, where their targets are."""

from __future__ import annotations

import posixpath
import re
from typing import Any

REPOSITORY = "https://github.com/autellix/autellix/blob/main"
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return a page with its links out of the documentation made absolute; MkDocs calls this."""
    return with_absolute_links(markdown, page.file.src_uri)


def with_absolute_links(markdown: str, page: str) -> str:
    """Return the text of a page, by its path below docs/, with links into the rest of the repository."""

    def absolute(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[2]))
        if "://" in found[2] or target.startswith("docs/") or target == "docs":
            return found[0]
        return f"{found[1]}{REPOSITORY}/{target}{found[3]}"

    return _LINK.sub(absolute, markdown)
