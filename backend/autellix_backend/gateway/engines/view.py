"""What a gateway knows of an engine at a moment, for those who show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.reports.snapshot import EngineSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """What the gateway knows of an engine."""

    failure: str | None = None
    """Why it is down; None while it is up."""
    sends_snapshots: bool = True
    silence: str = "that engine does not report its queue"
    """How explanations describe an engine that sends none."""
    snapshot: EngineSnapshot | None = None
    """Its last snapshot; None while it is down, because the last one is out of date."""
    ranks: tuple[EngineSnapshot, ...] = ()
    """The last snapshot of each data-parallel rank; `snapshot` is their sum."""
    age_s: float | None = None
    """The snapshot's age."""
    slots: float = math.inf
    """The calls that it runs at once, as far as that is known."""
    memory: MemoryReport | None = None
    """The working set in its last snapshot; None where every program may run."""
    estimated_memory: MemoryReport | None = None
    """The working set as the gateway estimates it for an engine without snapshots."""
    is_queued: Callable[[str], bool] = lambda _: False
    """Returns whether the call of a key waits at the gateway."""
    why_queued: Callable[[str], str | None] = lambda _: None
    """Returns why the call of a key waits at the gateway; None once the call was sent."""
    waits_for_memory: Callable[[str], bool] = lambda _: False
    """Returns whether the call of a key waits at the gateway because its program is inactive."""


def engine_view(handle: EngineHandle) -> EngineView:
    """Return what is known of an engine."""
    is_up = handle.supervisor.is_up
    return EngineView(
        failure=None if is_up else handle.engine.failure() or handle.supervisor.problem,
        sends_snapshots=handle.sends_reports,
        silence=_silence_of(handle),
        snapshot=handle.snapshots.merged if is_up else None,
        ranks=tuple(handle.snapshots.by_rank.values()) if is_up else (),
        age_s=handle.snapshot_age_s if is_up else None,
        slots=handle.slots,
        memory=handle.snapshots.memory if is_up else None,
        estimated_memory=handle.memory if is_up and handle.snapshots.merged is None else None,
        is_queued=handle.queue.is_queued,
        why_queued=handle.queue.why_queued,
        waits_for_memory=handle.queue.waits_for_memory,
    )


def _silence_of(handle: EngineHandle) -> str:
    problem = handle.reporting.problem
    silence = "that engine does not report its queue"
    return silence if problem is None else f"{silence} ({problem})"
