"""The snapshots of an engine's data-parallel ranks as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from msgspec.structs import replace

from autellix_backend.reports.snapshot import (
    AdmissionSnapshot,
    DemandSnapshot,
    EngineSnapshot,
    KvOffloadTotals,
    ParkedSnapshot,
    PresentPrograms,
)

Sums = TypeVar("Sums", AdmissionSnapshot, KvOffloadTotals, ParkedSnapshot)
"""Named tuples of numbers."""
_SUMS = ("running", "waiting", "slots", "kv_used_blocks", "kv_total_blocks", "left_out")


def merge_ranks(ranks: Sequence[EngineSnapshot]) -> EngineSnapshot:
    """Return one snapshot of all ranks: loads are added up, and the calls of each rank follow each other.

    The places of calls are those in their rank. Steps are those of the rank that has most, as the ranks
    execute theirs side by side; their mean duration is that over the ranks, and the boost the strongest.

    Args:
        ranks: The latest snapshot of each rank, at least one.
    """
    first, *others = ranks
    if not others:
        return first
    durations = [snapshot.mean_step_s for snapshot in ranks if snapshot.mean_step_s is not None]
    return replace(
        first,
        **{name: sum(getattr(snapshot, name) for snapshot in ranks) for name in _SUMS},
        step=max(snapshot.step for snapshot in ranks),
        mean_step_s=sum(durations) / len(durations) if durations else None,
        is_block_short=any(snapshot.is_block_short for snapshot in ranks),
        level_calls=tuple(map(sum, zip_longest(*(snapshot.level_calls for snapshot in ranks), fillvalue=0))),
        calls=tuple(chain.from_iterable(snapshot.calls for snapshot in ranks)),
        present=_all_present(ranks),
        kv_offload=_sum([snapshot.kv_offload for snapshot in ranks]),
        admission=_sum([snapshot.admission for snapshot in ranks]),
        demand=_all_demand([snapshot.demand for snapshot in ranks if snapshot.demand is not None]),
        spare_tokens=sum(snapshot.spare_tokens for snapshot in ranks),
        parked=_sum([snapshot.parked for snapshot in ranks]),
        boost=max((snapshot.boost for snapshot in ranks if snapshot.boost is not None), default=None),
        hold_s=max((snapshot.hold_s for snapshot in ranks if snapshot.hold_s is not None), default=None),
    )


def _all_demand(parts: Sequence[DemandSnapshot]) -> DemandSnapshot | None:
    """Add up what waits; programs end as often as on all ranks together. None if there is nothing to add."""
    if not parts:
        return None
    ends_per_s = sum(1 / part.between_ends_s for part in parts if part.between_ends_s)
    idle = [part.idle for part in parts if part.idle is not None]
    return DemandSnapshot(
        inactive_tokens=sum(part.inactive_tokens for part in parts),
        inactive_calls=sum(part.inactive_calls for part in parts),
        between_ends_s=1 / ends_per_s if ends_per_s else 0.0,
        idle=tuple(chain.from_iterable(idle)) if len(idle) == len(parts) else None,
    )


def _all_present(ranks: Sequence[EngineSnapshot]) -> PresentPrograms | None:
    """Return the programs with calls on all ranks; None where the calls of all are those of this moment."""
    if all(snapshot.present is None for snapshot in ranks):
        return None
    parts = [snapshot.programs for snapshot in ranks]
    return PresentPrograms(
        tuple(chain.from_iterable(part.inactive for part in parts)),
        tuple(chain.from_iterable(part.others for part in parts)),
        all(part.is_complete for part in parts),
    )


def _sum(parts: Sequence[Sums | None]) -> Sums | None:
    """Add up field by field; None if there is nothing to add."""
    known = [part for part in parts if part is not None]
    return type(known[0])(*(sum(values) for values in zip(*known, strict=True))) if known else None
