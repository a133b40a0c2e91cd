"""What an engine showed of itself last: a snapshot of each data-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.reports.ranks import merge_ranks
from autellix_backend.reports.snapshot import EngineSnapshot


@dataclass(slots=True, eq=False)
class LatestSnapshots:
    """The latest snapshot that each rank of an engine has sent since the engine came up."""

    by_rank: dict[int, EngineSnapshot] = field(default_factory=dict)
    merged: EngineSnapshot | None = None
    """The snapshots of all ranks as one; None before the first."""
    memory: MemoryReport | None = None
    """The working set in `merged`, for the balancer."""
    arrived_s: float | None = None
    """When the last one arrived."""
    open_calls: int = 0
    """How many of our calls were open then."""

    def put(self, snapshot: EngineSnapshot, now: float, open_calls: int) -> EngineSnapshot | None:
        """Keep a rank's snapshot; return its one before."""
        before = self.by_rank.get(snapshot.rank)
        self.by_rank[snapshot.rank] = snapshot.with_calls_of(before)
        self.merged = merge_ranks(list(self.by_rank.values()))
        self.memory = self.merged.memory()
        self.arrived_s, self.open_calls = now, open_calls
        return before

    def clear(self) -> None:
        """Drop all: the engine is not up, or another one."""
        self.by_rank.clear()
        self.merged = self.memory = self.arrived_s = None
