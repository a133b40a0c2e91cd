"""Who holds an engine's KV memory, in parts that add up to all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.gateway.engines.view import EngineView


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMemory:
    """KV memory in tokens of whole contexts; what is neither held, kept nor reserved is free."""

    total_tokens: int
    held_tokens: int
    """Held by calls in the engine."""
    kept_tokens: int
    """Kept for active programs beyond that: their contexts between calls, and growth."""
    reserve_tokens: int
    """What no program may fill."""
    waiting_tokens: int
    """What the programs that wait for memory would add."""


def kv_memory(view: EngineView) -> KvMemory | None:
    """Return the parts of an engine's KV memory by its last snapshot, else as estimated here; else None."""
    snapshot, estimate = view.snapshot, view.estimated_memory
    if snapshot is None:
        if estimate is None or math.isinf(estimate.capacity_tokens):
            return None
        return _estimated(estimate)
    total = snapshot.kv_total_blocks * snapshot.kv_block_tokens
    held = snapshot.kv_used_blocks * snapshot.kv_block_tokens
    kept = reserve = 0
    if (admission := snapshot.admission) is not None:
        kept = min(max(0, admission.working_set_tokens - held), total - held)
        reserve = min(max(0, total - admission.capacity_tokens), total - held - kept)
    return KvMemory(
        total_tokens=total,
        held_tokens=held,
        kept_tokens=kept,
        reserve_tokens=reserve,
        waiting_tokens=snapshot.demand.inactive_tokens if snapshot.demand else 0,
    )


def _estimated(memory: MemoryReport) -> KvMemory:
    """Return what the gateway admits by; which calls hold their memory is not known."""
    total = int(memory.capacity_tokens)
    return KvMemory(
        total_tokens=total,
        held_tokens=0,
        kept_tokens=min(memory.active_tokens, total),
        reserve_tokens=0,
        waiting_tokens=memory.inactive_tokens,
    )


def sum_of(engines: Iterable[KvMemory]) -> KvMemory | None:
    """Return the memory of several engines as one; None without any."""
    parts = list(engines)
    if not parts:
        return None
    return KvMemory(
        total_tokens=sum(part.total_tokens for part in parts),
        held_tokens=sum(part.held_tokens for part in parts),
        kept_tokens=sum(part.kept_tokens for part in parts),
        reserve_tokens=sum(part.reserve_tokens for part in parts),
        waiting_tokens=sum(part.waiting_tokens for part in parts),
    )
