"""Tables on a terminal, in a pipe or in a file, with the standard library only."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

PLAIN_WIDTH = 200
"""The width of tables in a file or a pipe."""
MIN_ID_WIDTH = 12
"""The least width of the first column, before others are cut."""
GAP = "  "
ELLIPSIS = "…"


class Style(StrEnum):
    """The look of a line on a terminal: a code of ECMA-48, 8.3.117."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of one row of a table."""

    cells: Sequence[str]
    style: Style = Style.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where a command prints."""

    width: int = PLAIN_WIDTH
    height: int = 24
    is_terminal: bool = False
    has_color: bool = False

    @classmethod
    def of_output(cls) -> Terminal:
        """Return what standard output is at this moment."""
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return cls()
        size = shutil.get_terminal_size()
        return cls(
            width=size.columns,
            height=size.lines,
            is_terminal=True,
            has_color=not os.environ.get("NO_COLOR"),
        )

    def styled(self, line: str, style: Style) -> str:
        """Return a line in a style, or as it is without colors."""
        return f"\x1b[{style}m{line}\x1b[0m" if style and self.has_color else line

    def wrapped(self, text: str, style: Style = Style.PLAIN) -> list[str]:
        """Return a text in lines of this width."""
        return [self.styled(line, style) for line in textwrap.wrap(text, self.width)]

    def table(self, headings: Sequence[str], rows: Sequence[Row]) -> list[str]:
        """Return the lines of a table.

        The first column, the ids that other commands need, is folded and never cut; others end in an ellipsis
        where the width does not suffice.
        """
        shown = [Row(cells=headings, style=Style.BOLD), *rows]
        cells = [[printable(cell) for cell in row.cells] for row in shown]
        widths = self._widths([max(map(len, column)) for column in zip(*cells, strict=True)])
        return [
            self.styled(line, row.style)
            for row, each in zip(shown, cells, strict=True)
            for line in _lines(each, widths)
        ]

    def _widths(self, widths: list[int]) -> list[int]:
        """Return widths that fit: narrow the first column first, then the widest of the others."""
        excess = sum(widths) + len(GAP) * (len(widths) - 1) - self.width
        narrowed = min(max(excess, 0), max(0, widths[0] - MIN_ID_WIDTH))
        first, others = widths[0] - narrowed, widths[1:]
        for _ in range(excess - narrowed):
            if max(others, default=1) > 1:
                others[others.index(max(others))] -= 1
        return [first, *others]


def _lines(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    ids, rest = cells[0], cells[1:]
    folded = [ids[at : at + widths[0]] for at in range(0, len(ids), widths[0])] or [""]
    cut = [
        cell if len(cell) <= width else cell[: width - 1] + ELLIPSIS
        for cell, width in zip(rest, widths[1:], strict=True)
    ]
    first = GAP.join(cell.ljust(width) for cell, width in zip((folded[0], *cut), widths, strict=True))
    yield first.rstrip()
    yield from folded[1:]


def printable(text: str) -> str:
    """Return a text without codes that a terminal would obey: clients choose ids and names."""
    return "".join(each if each.isprintable() else "?" for each in text)


@contextlib.contextmanager
def full_screen() -> Iterator[None]:
    """Use the terminal's second screen, without a cursor, while inside."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def redraw(lines: Sequence[str]) -> None:
    """Replace the screen's content by lines, each shorter than its width."""
    sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
    sys.stdout.flush()
