"""The clock of a shared table, as one gateway reads it."""

from __future__ import annotations

from collections.abc import Callable


class TableClock:
    """Converts between this process's clock and the table's, by the latest measured difference."""

    def __init__(self, own_now: Callable[[], float]) -> None:
        self.own_now = own_now
        self._ahead_s = 0.0

    def shared(self, own_s: float) -> float:
        """Convert a time of this process's clock to the table's."""
        return own_s + self._ahead_s

    def own(self, shared_s: float) -> float:
        """Convert a time of the table's clock to this process's."""
        return shared_s - self._ahead_s

    def measured(self, table_s: float, sent_s: float, received_s: float) -> None:
        """Set the difference from the table's time, read between two times here."""
        self._ahead_s = table_s - (sent_s + received_s) / 2
