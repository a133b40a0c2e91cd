"""When snapshots are sent, and their contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.reports.call_arguments import CallIdentity
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import AdmissionSnapshot, EngineSnapshot, KvOffloadTotals
from autellix_backend.vllm_plugin.settings import PluginSettings
from autellix_backend.vllm_plugin.snapshots import (
    CALLS_PERIOD_S,
    MAX_FEW_CALLS,
    MAX_PERIOD_S,
    MAX_SHARE,
    MAX_STANDINGS,
    PERIOD_S,
    SchedulerLoad,
    SnapshotReporter,
    load_of,
)
from autellix_backend.vllm_plugin.steps import StepTokens
from autellix_backend.vllm_plugin.tracker import CallTracker

SWAPPED = KvOffloadTotals(4096, 2, 0.25, 2048, 1, 0.125, 3, 0)
LOAD = SchedulerLoad(
    running=1,
    slots=4,
    kv_used_blocks=6,
    kv_total_blocks=10,
    kv_block_tokens=16,
    is_block_short=False,
    kv_offload=SWAPPED,
)
DONE: dict[str, Any] = {"prompt_tokens": 10, "output_tokens": 3, "finish_reason": "stop", "is_aborted": False}


class Gateways:
    """What the report server does for a tracker, kept in a list."""

    has_gateways = True
    dropped_records = 0

    def __init__(self) -> None:
        self.snapshots: list[EngineSnapshot] = []

    def send(self, gateway: str, report: EngineReport) -> None:
        """Drop a report."""

    def broadcast(self, snapshot: EngineSnapshot) -> None:
        """Keep a snapshot."""
        self.snapshots.append(EngineSnapshot.from_bytes(snapshot.to_bytes()))


@pytest.fixture
def gateways() -> Gateways:
    return Gateways()


@pytest.fixture
def tracker(gateways: Gateways) -> CallTracker:
    return make_tracker(gateways)


def make_tracker(gateways: Any) -> CallTracker:
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy="plas", bounds=(1.0, 2.0))))
    tracker.reports = gateways
    return tracker


def arrive(tracker: CallTracker, request_id: str, service_s: float = 0.0) -> None:
    arrival = Arrival(request_id, f"p-{request_id}", service_s=service_s, inherited_s=service_s)
    tracker.arrive(request_id, CallIdentity(call_id=f"c-{request_id}", arrival=arrival), 0.0)


def at(now: float) -> Callable[[], float]:
    return lambda: now


def held_blocks(request_id: str, others: Sequence[str]) -> int:
    """Return the blocks of a request, two of which each other one holds too."""
    return 6 - 2 * len(others)


def no_clock() -> float:
    raise AssertionError("the clock was looked at")


def test_a_snapshot_lists_the_queue_in_order(tracker: CallTracker, gateways: Gateways) -> None:
    reporter = SnapshotReporter(tracker)
    arrive(tracker, "late", service_s=1.5)
    arrive(tracker, "first")
    tracker.start("first", 1.0, cached_tokens=0)
    for duration_s in (0.02, 0.04):
        tracker.charge(StepTokens(decoded={"first": 1}), duration_s, 2.0)
        reporter.observe_step(duration_s)
    reporter.send(at(2.0), LOAD, held_blocks)
    told = gateways.snapshots.pop()

    assert (told.step, told.running, told.waiting, told.slots) == (2, 1, 1, 4)
    assert (
        told.kv_used_blocks,
        told.kv_total_blocks,
        told.kv_block_tokens,
        told.level_calls,
        told.left_out,
    ) == (6, 10, 16, (1, 1, 0), 0)
    assert told.mean_step_s == pytest.approx(0.03)
    assert told.kv_offload == SWAPPED
    assert [
        (call.call_id, call.program_id, call.place, call.is_running, call.kv_blocks) for call in told.calls
    ] == [("c-first", "p-first", 1, True, 6), ("c-late", "p-late", 2, False, 0)]
    reporter.send(at(2.5), LOAD, held_blocks)
    assert gateways.snapshots.pop().mean_step_s is None


def test_blocks_that_calls_of_a_program_share_count_for_the_first(tracker: CallTracker) -> None:
    """Three branches with one prefix do not hold it three times."""
    for number in range(3):
        arrival = Arrival(f"branch-{number}", "p")
        tracker.arrive(f"branch-{number}", CallIdentity(call_id=f"c-{number}", arrival=arrival), 0.0)
        tracker.start(f"branch-{number}", 1.0, cached_tokens=0)
    arrive(tracker, "other")
    tracker.start("other", 1.0, cached_tokens=0)
    told = SnapshotReporter(tracker).snapshot(1.0, LOAD, held_blocks)

    assert [(call.call_id, call.kv_blocks) for call in told.calls] == [
        ("c-0", 6),
        ("c-1", 4),
        ("c-2", 2),
        ("c-other", 6),
    ]


def test_a_snapshot_tells_prefill_from_decode(tracker: CallTracker) -> None:
    for name in ("new", "prefills", "decodes", "again"):
        arrive(tracker, name)
    for name in ("new", "prefills", "decodes", "again"):
        tracker.start(name, 1.0, cached_tokens=0)
    arrive(tracker, "waits")
    tracker.charge(StepTokens(prefilled={"prefills": 8}, decoded={"decodes": 1, "again": 1}), 0.1, 2.0)
    tracker.charge(StepTokens(prefilled={"again": 8}), 0.1, 3.0)
    told = SnapshotReporter(tracker).snapshot(3.0, LOAD, held_blocks)

    assert {call.call_id: call.is_decoding for call in told.calls} == {
        "c-new": False,
        "c-prefills": False,
        "c-decodes": True,
        "c-again": False,
        "c-waits": None,
    }


@pytest.mark.parametrize(
    ("connector", "expected"),
    [(None, None), (object(), None), (SimpleNamespace(offload_totals=lambda: SWAPPED), SWAPPED)],
    ids=["no connector", "a stock connector", "ours"],
)
def test_only_our_connector_reports_offload_totals(
    tracker: CallTracker, connector: object, expected: KvOffloadTotals | None
) -> None:
    pool = SimpleNamespace(num_gpu_blocks=11, get_num_free_blocks=lambda: 4)
    scheduler = SimpleNamespace(
        kv_cache_manager=SimpleNamespace(block_pool=pool),
        running=[],
        connector=connector,
    )
    load = load_of(scheduler, tracker, 3, block_tokens=16, is_block_short=False)

    assert (load["kv_offload"], load["kv_used_blocks"], load["kv_total_blocks"]) == (expected, 6, 10)


def test_the_tail_of_a_long_queue_is_counted_only(tracker: CallTracker) -> None:
    for number in range(MAX_STANDINGS + 10):
        arrive(tracker, f"r{number}")
    told = SnapshotReporter(tracker).snapshot(1.0, LOAD, held_blocks)

    assert (len(told.calls), told.left_out) == (MAX_STANDINGS, 10)
    assert told.waiting == MAX_STANDINGS + 9


def test_calls_that_are_not_admitted_follow_in_the_order_of_their_programs() -> None:
    scheduler = SchedulerConfig(policy="plas", admission="working_set", kv_share=0.6)
    tracker = CallTracker(PluginSettings(scheduler=scheduler), kv_tokens=1000)
    for name, service_s in (("runs", 0.0), ("late", 9.0), ("next", 3.0)):
        arrival = Arrival(name, name, service_s=service_s, inherited_s=service_s)
        tracker.arrive(name, CallIdentity(call_id=f"c-{name}", arrival=arrival), 0.0, prompt_tokens=500)
    tracker.start("runs", 0.5, cached_tokens=0)
    told = SnapshotReporter(tracker).snapshot(1.0, LOAD, held_blocks)

    assert [
        (call.program_id, call.place, call.is_admitted, call.inactive_place, call.context_tokens)
        for call in told.calls
    ] == [("runs", 1, True, None, 500), ("next", 2, False, 1, 500), ("late", 3, False, 2, 500)]
    assert told.admission == AdmissionSnapshot(1, 2, 500, 600)
    assert told.boost is None


def test_a_snapshot_is_due_each_period_and_once_when_the_engine_empties(tracker: CallTracker) -> None:
    reporter = SnapshotReporter(tracker)
    assert not reporter.is_due(no_clock)
    arrive(tracker, "r")
    assert reporter.is_due(at(1.0))
    reporter.send(at(1.0), LOAD, held_blocks)
    assert not reporter.is_due(at(1.0 + PERIOD_S / 2))
    assert reporter.is_due(at(1.0 + PERIOD_S))
    tracker.close("r", 1.1, **DONE)
    assert reporter.is_due(no_clock)
    reporter.send(at(1.1), LOAD, held_blocks)
    assert not reporter.is_due(no_clock)


def test_many_calls_are_listed_less_often(tracker: CallTracker, gateways: Gateways) -> None:
    """Load and memory are not."""
    reporter = SnapshotReporter(tracker, cpu_clock=lambda: 1.0)
    for number in range(MAX_FEW_CALLS + 1):
        arrive(tracker, f"r{number}")
    count = len(tracker)
    for now in (1.0, 1.0 + PERIOD_S, 1.0 + CALLS_PERIOD_S):
        reporter.send(at(now), LOAD, held_blocks)
    assert [(len(told.calls), told.left_out) for told in gateways.snapshots] == [
        (count, 0),
        (0, count),
        (count, 0),
    ]
    assert [told.present is None for told in gateways.snapshots] == [True, False, True]
    tracker.close("r0", 4.0, **DONE)

    reporter.send(at(1.1 + CALLS_PERIOD_S), LOAD, held_blocks)
    assert len(gateways.snapshots[-1].calls) == MAX_FEW_CALLS


def test_slow_snapshots_are_sent_less_often(tracker: CallTracker) -> None:
    """A snapshot of 10 ms may come again after 2 s: half a percent of the time."""
    cpu_times = iter((1.0, 1.01, 2.0, 3.0))
    reporter = SnapshotReporter(tracker, cpu_clock=lambda: next(cpu_times))
    arrive(tracker, "r")
    reporter.send(at(1.0), LOAD, held_blocks)
    assert MAX_SHARE == 0.005
    assert not reporter.is_due(at(2.9))
    assert reporter.is_due(at(3.1))

    # However long it took, the engine is not silent for longer than this.
    reporter.send(at(3.1), LOAD, held_blocks)
    assert not reporter.is_due(at(3.0 + MAX_PERIOD_S))
    assert reporter.is_due(at(3.2 + MAX_PERIOD_S))


def test_a_snapshot_during_which_others_had_the_processor_comes_again_in_time(tracker: CallTracker) -> None:
    reporter = SnapshotReporter(tracker, cpu_clock=lambda: 1.0)
    arrive(tracker, "r")
    moments = iter((1.0, 21.0))
    reporter.send(lambda: next(moments, 21.0), LOAD, held_blocks)
    assert reporter.is_due(at(1.0 + PERIOD_S))


def test_calls_between_two_snapshots_need_no_final_snapshot(tracker: CallTracker) -> None:
    """Short calls on an idle engine cost no message each."""
    reporter = SnapshotReporter(tracker)
    arrive(tracker, "a")
    reporter.send(at(1.0), LOAD, held_blocks)
    tracker.close("a", 1.1, **DONE)
    reporter.send(at(1.1), LOAD, held_blocks)
    arrive(tracker, "b")
    assert not reporter.is_due(at(1.2))
    tracker.close("b", 1.2, **DONE)
    assert not reporter.is_due(no_clock)


def test_nothing_is_due_without_a_gateway() -> None:
    tracker = make_tracker(None)
    arrive(tracker, "r")
    assert not SnapshotReporter(tracker).is_due(no_clock)
