"""Completion times of conversations, from a load generator's records of single calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autellix_lab.workload.statistics import statistics_of


@dataclass(frozen=True, slots=True)
class Record:
    """One answered call of a conversation; times in seconds of any one clock."""

    conversation: str
    start_s: float
    end_s: float


def completion(records: Iterable[Record], calls: int | None = None) -> dict[str, float]:
    """Return how many conversations completed, and statistics of their seconds to the last answer.

    With `calls`, conversations that have another number of answered calls are left out: they were cut off.
    """
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.conversation, []).append(record)
    kept = [group for group in found.values() if calls in (None, len(group))]
    durations = [max(item.end_s for item in group) - min(item.start_s for item in group) for group in kept]
    latencies = [item.end_s - item.start_s for group in found.values() for item in group]
    rounded = {f"completion_{name}_s": round(value, 2) for name, value in _statistics(durations).items()}
    rounded |= {f"call_{name}_s": round(value, 3) for name, value in _statistics(latencies).items()}
    return {"conversations": len(kept), "calls": len(latencies)} | rounded


def _statistics(values: list[float]) -> dict[str, float]:
    return statistics_of(values) if values else {}
