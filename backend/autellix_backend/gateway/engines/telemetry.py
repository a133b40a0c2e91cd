"""The latest snapshot that an engine has sent of its queues."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.reports.snapshot import EngineSnapshot


class EngineTelemetry:
    """One engine's latest snapshot, if the engine sends any and has sent one since it came up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.snapshot: EngineSnapshot | None = None
        self.received_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Return the time since the snapshot arrived."""
        return None if self.received_s is None else self._clock() - self.received_s

    def replace(self, snapshot: EngineSnapshot) -> EngineSnapshot | None:
        """Keep a snapshot; return the one before."""
        before, self.snapshot = self.snapshot, snapshot
        self.received_s = self._clock()
        return before

    def forget(self) -> None:
        """Drop the snapshot of an engine that is no longer up."""
        self.snapshot = self.received_s = None
