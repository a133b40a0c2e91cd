"""The engines' latest snapshots of their queues, as far as engines send them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autellix_backend.core.snapshot import EngineSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSnapshot:
    """A snapshot, and when it came."""

    snapshot: EngineSnapshot
    received_s: float


class SnapshotListener(Protocol):
    """Who is told of snapshots; must not raise or block."""

    def __call__(self, engine: str, before: EngineSnapshot | None, after: EngineSnapshot) -> None:
        """Learn of a snapshot and of the one before it, if there was one."""
        ...


class SnapshotBoard:
    """The last report of each engine; an engine without one sends none, or has not begun to."""

    def __init__(self, clock: Callable[[], float], listener: SnapshotListener | None = None) -> None:
        self._clock = clock
        self._listener = listener
        self._reports: dict[str, ReceivedSnapshot] = {}

    def take(self, engine: str, snapshot: EngineSnapshot) -> None:
        """Keep a snapshot in place of the one before."""
        before = self._reports.get(engine)
        self._reports[engine] = ReceivedSnapshot(snapshot=snapshot, received_s=self._clock())
        if self._listener is not None:
            self._listener(engine, before.snapshot if before else None, snapshot)

    def get(self, engine: str) -> ReceivedSnapshot | None:
        """Return an engine's last report."""
        return self._reports.get(engine)

    def forget(self, engine: str) -> None:
        """Drop the report of an engine that ended; it need not have one."""
        self._reports.pop(engine, None)
