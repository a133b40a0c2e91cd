"""Sends snapshots of the engine's queues to the gateway: at most every PERIOD_S, and when they empty.

A snapshot is made between two steps. Where there are many calls, listing them takes most of that: it is done
every CALLS_PERIOD_S only. The longer a snapshot took, the later the next one is due, up to MAX_PERIOD_S, so
that snapshots take no more than MAX_SHARE of the engine's time.
CPU time counts: by the clock, a snapshot during which another process had the processor would silence
the engine for long.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypedDict

from autellix_backend.core.balance.memory import memory_of
from autellix_backend.core.call import Call
from autellix_backend.core.machine import Machine
from autellix_backend.reports.snapshot import (
    CallSnapshot,
    EngineSnapshot,
    KvOffloadTotals,
    admission_of,
    boost_of,
    demand_of,
    parked_of,
    present_of,
    snapshot_of,
)
from autellix_backend.vllm_plugin.tracker import CallTracker

PERIOD_S = 0.5
CALLS_PERIOD_S = 1.0
MAX_FEW_CALLS = 16
"""The most calls that a snapshot lists."""
MAX_PERIOD_S = 5.0
MAX_SHARE = 0.005
MAX_STANDINGS = 256
"""The most calls in one snapshot, the first in queue order; it bounds the cost to the engine."""


HeldBlocks = Callable[[str, Sequence[str]], int]
"""Returns the KV blocks of a running request, without those that other requests hold too."""


class SchedulerLoad(TypedDict):
    """The engine's slots and KV blocks, as a snapshot has them."""

    running: int
    slots: int
    kv_used_blocks: int
    kv_total_blocks: int
    kv_block_tokens: int
    is_block_short: bool
    kv_offload: KvOffloadTotals | None


def load_of(
    scheduler: Any, tracker: CallTracker, free_slots: int, *, block_tokens: int, is_block_short: bool
) -> SchedulerLoad:
    """Read the load of an engine from vLLM's scheduler."""
    pool = scheduler.kv_cache_manager.block_pool
    total_blocks = pool.num_gpu_blocks - 1  # One is vLLM's null block.
    # Only our connector has them.
    offload_totals = getattr(getattr(scheduler, "connector", None), "offload_totals", None)
    return SchedulerLoad(
        # Requests that have just finished may still be in vLLM's list.
        running=sum(request.request_id in tracker for request in scheduler.running),
        slots=len(scheduler.running) + free_slots,
        kv_used_blocks=total_blocks - pool.get_num_free_blocks(),
        kv_total_blocks=total_blocks,
        kv_block_tokens=block_tokens,
        is_block_short=is_block_short,
        kv_offload=offload_totals() if offload_totals is not None else None,
    )


class SnapshotReporter:
    """Makes the snapshots of one engine, and sends those that are due."""

    def __init__(
        self, tracker: CallTracker, rank: int = 0, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        """Make no snapshot yet.

        Args:
            tracker: The engine's calls.
            rank: The engine's data-parallel rank.
            cpu_clock: The CPU time (s) of the thread that makes the snapshots.
        """
        self._tracker = tracker
        self._cpu_clock = cpu_clock
        self._rank = rank
        self._next_s = 0.0
        self._next_calls_s = 0.0
        self._had_calls = False
        self._steps = 0
        self._steps_s = 0.0

    def observe_step(self, duration_s: float) -> None:
        """Add the duration of an executed step."""
        self._steps += 1
        self._steps_s += duration_s

    def is_due(self, clock: Callable[[], float]) -> bool:
        """Whether a snapshot is due; reads the clock only where that depends on it."""
        if not self._tracker.is_reporting:
            return False
        if not len(self._tracker):
            return self._had_calls
        return clock() >= self._next_s

    def send(self, clock: Callable[[], float], load: SchedulerLoad, held_blocks: HeldBlocks) -> None:
        """Send a snapshot.

        Args:
            clock: The tracker's clock.
            load: The engine's load.
            held_blocks: Returns the number of KV blocks of a running request, without those of others.
        """
        now, began_s = clock(), self._cpu_clock()
        self._had_calls = bool(len(self._tracker))
        if self._tracker.reports is not None:
            has_calls = now >= self._next_calls_s or len(self._tracker) <= MAX_FEW_CALLS
            if has_calls:
                self._next_calls_s = now + CALLS_PERIOD_S
            self._tracker.reports.broadcast(self.snapshot(now, load, held_blocks, has_calls=has_calls))
        period_s = (self._cpu_clock() - began_s) / MAX_SHARE
        self._next_s = now + min(max(PERIOD_S, period_s), MAX_PERIOD_S)
        self._steps, self._steps_s = 0, 0.0

    def snapshot(
        self, now: float, load: SchedulerLoad, held_blocks: HeldBlocks, *, has_calls: bool = True
    ) -> EngineSnapshot:
        """Return the snapshot of this moment, with its calls or without them."""
        tracker, machine = self._tracker, self._tracker.machine
        report = memory_of(machine, now)
        standings = self._standings(now, held_blocks) if has_calls else ()
        return EngineSnapshot(
            **load,
            rank=self._rank,
            step=tracker.step,
            mean_step_s=self._steps_s / self._steps if self._steps else None,
            waiting=len(tracker) - load["running"],
            level_calls=machine.shares.level_sizes(),
            calls=standings,
            left_out=len(tracker) - len(standings),
            present=None if has_calls else present_of(machine),
            admission=admission_of(machine),
            demand=demand_of(machine, report),
            spare_tokens=0 if report is None else report.spare_tokens,
            parked=parked_of(machine, report),
            boost=boost_of(machine),
            hold_s=machine.admission.hold_s,
        )

    def _standings(self, now: float, held_blocks: HeldBlocks) -> tuple[CallSnapshot, ...]:
        tracker, machine = self._tracker, self._tracker.machine
        tracker.bring_up(now)
        memory = machine.admission.memory
        places = {} if memory is None else memory.inactive.places()
        calls = chain(machine, _refused(machine, places))
        running: defaultdict[str, list[str]] = defaultdict(list)

        def own_blocks(call: Call) -> int:
            """Return the blocks of a running call that were not counted for its program yet."""
            earlier = running[call.program_id]
            blocks = held_blocks(call.call_id, earlier)
            earlier.append(call.call_id)
            return blocks

        return tuple(
            snapshot_of(
                machine,
                call,
                now,
                place=place,
                call_id=tracker.identity(call.call_id).call_id,
                kv_blocks=own_blocks(call) if call.is_running else 0,
                inactive_place=places.get(call.program_id),
                is_decoding=tracker.is_decoding(call.call_id) if call.is_running else None,
            )
            for place, call in enumerate(islice(calls, MAX_STANDINGS), start=1)
        )


def _refused(machine: Machine, places: Mapping[str, int]) -> Iterator[Call]:
    """Walk the calls that are not admitted, in the order in which their programs will be."""
    if places:
        yield from sorted(machine.refused(), key=lambda call: places[call.program_id])
