"""The clock of a table that several machines share, as one of them reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TableClock:
    """Translates between this process's clock and the table's, by the difference that was measured last."""

    def __init__(self, own_now: Callable[[], float]) -> None:
        """Begin with no difference.

        Args:
            own_now: This process's clock, in seconds that only grow.
        """
        self.own_now = own_now
        self._ahead_s = 0.0

    def shared(self, own_s: float) -> float:
        """Return a moment of this process's clock on the table's."""
        return own_s + self._ahead_s

    def own(self, shared_s: float) -> float:
        """Return a moment of the table's clock on this process's."""
        return shared_s - self._ahead_s

    def measured(self, server_time: Sequence[int], sent_s: float, received_s: float) -> None:
        """Take in what the server's clock said, in seconds and microseconds, between two moments here."""
        seconds, microseconds = (float(part) for part in server_time)
        self._ahead_s = seconds + microseconds / 1e6 - (sent_s + received_s) / 2
