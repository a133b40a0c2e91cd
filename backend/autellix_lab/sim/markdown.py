"""Tables in Markdown, and the parts of pages that programs write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def write_part(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace the lines of a page between the comments `<!-- NAME: -->` and `<!-- :NAME -->`.

    Raises:
        ValueError: if the page does not have both, in this order.
    """
    begin, end = f"<!-- {name}: -->", f"<!-- :{name} -->"
    text = page.read_text(encoding="utf-8")
    head, begun, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"{page} has no part between {begin} and {end}")
    body = "\n".join(lines).strip()
    page.write_text(f"{head}{begin}\n\n{body}\n\n{end}{tail}", encoding="utf-8")
