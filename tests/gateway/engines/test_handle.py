"""What an engine sends, and its latest snapshot."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.engine import FakeEngine
from tests.gateway.engine_reports import report_of
from tests.gateway.snapshots import snapshot, standing

from autellix_backend.assembly import create_app
from autellix_backend.engines.supervisor import EngineChange, EngineState
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.reports.snapshot import AdmissionSnapshot, DemandSnapshot
from autellix_backend.settings import Settings

DOWN = EngineChange(engine="fake", state=EngineState.DOWN, reason="gone")


def make_handle(clock: Callable[[], float]) -> EngineHandle:
    handle: EngineHandle = create_app(Settings(), FakeEngine(name="fake")).state.gateway.pool.get("fake")
    handle.clock = clock
    return handle


def test_reports_and_snapshots_are_told_apart_and_malformed_messages_counted() -> None:
    gateway = create_app(Settings(), FakeEngine(name="fake")).state.gateway
    handle = gateway.pool.get("fake")
    last = snapshot()
    for message in (report_of("c").to_bytes(), b"{}", b"\xff", b"[]", last.to_bytes(), last.to_bytes()[:-1]):
        handle.on_message(message)
    assert handle.snapshots.merged == last
    page = gateway.metrics.render().decode()
    for result, count in (("malformed", 4), ("late", 1)):
        assert f'autellix_reports_total{{result="{result}"}} {count}.0' in page


def test_the_last_snapshot_stays_with_its_age() -> None:
    now = [10.0]
    handle = make_handle(lambda: now[0])
    assert (handle.snapshots.merged, handle.snapshot_age_s) == (None, None)
    handle.put_snapshot(snapshot())
    now[0] = 11.0
    last = snapshot(standing("p", place=1, level=1))
    handle.put_snapshot(last)
    now[0] = 13.5
    assert (handle.snapshots.merged, handle.snapshot_age_s) == (last, 2.5)
    handle.on_change(DOWN)
    handle.on_change(DOWN)
    assert (handle.snapshots.merged, handle.snapshot_age_s) == (None, None)


def test_each_snapshot_is_exchanged_for_the_one_before() -> None:
    handle = make_handle(lambda: 0.0)
    first, second = snapshot(step=1), snapshot(step=2)
    assert [handle.put_snapshot(first), handle.put_snapshot(second)] == [None, first]


def test_data_parallel_ranks_do_not_overwrite_each_other() -> None:
    handle = make_handle(lambda: 0.0)
    first, second = snapshot(rank=0, running=2, slots=3), snapshot(rank=1, running=1, slots=3)
    newer = snapshot(rank=0, running=3, slots=3)

    assert [handle.put_snapshot(each) for each in (first, second, newer)] == [None, None, first]
    assert handle.snapshots.merged is not None
    assert (handle.snapshots.merged.running, handle.snapshots.merged.slots) == (4, 6)
    handle.on_change(DOWN)
    handle.put_snapshot(second)
    assert handle.snapshots.merged == second


def test_the_balancer_sees_the_reported_memory_while_the_engine_is_up() -> None:
    handle = make_handle(lambda: 0.0)
    assert handle.memory is None
    admission, demand = AdmissionSnapshot(1, 0, 500, 600), DemandSnapshot(0, 0, 2.0, ("idle",))
    handle.put_snapshot(snapshot(standing("p", place=1, level=1), admission=admission, demand=demand))

    memory = handle.memory
    assert memory is not None
    assert (memory.active_tokens, memory.capacity_tokens, memory.known) == (500, 600, {"p", "idle"})
    handle.on_change(DOWN)
    assert handle.memory is None
