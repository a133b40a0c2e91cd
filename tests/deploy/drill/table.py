"""The table of what held."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)
WIDTH = 46


class Table:
    """Rows of what was asked, whether it held, and what was seen."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    @property
    def holds(self) -> bool:
        """Whether all has held, and something was asked."""
        return bool(self.rows) and all(row["holds"] for row in self.rows)

    def note(self, what: str, holds: bool, seen: object = "") -> None:
        """Add a row."""
        logger.info("%s: %s %s", "holds" if holds else "FAILS", what, seen)
        self.rows.append({"what": what, "holds": holds, "seen": str(seen)})

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Add a row: whether what happens inside succeeds."""
        try:
            yield
        except Exception as error:
            logger.exception("%s", what)
            self.note(what, False, f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            self.note(what, True)

    def __str__(self) -> str:
        return "\n".join(
            f"{'holds' if row['holds'] else 'FAILS'} | {row['what']!s:{WIDTH}} | {row['seen']}"
            for row in self.rows
        )
