"""The latest snapshot of an engine."""

from __future__ import annotations

from tests.gateway.snapshots import snapshot, standing

from autellix_backend.gateway.engines.handle import EngineTelemetry


def test_the_last_snapshot_stays_with_its_age() -> None:
    now = [10.0]
    telemetry = EngineTelemetry(lambda: now[0])
    assert (telemetry.snapshot, telemetry.received_s, telemetry.age_s) == (None, None, None)
    telemetry.replace(snapshot())
    now[0] = 11.0
    last = snapshot(standing("p", place=1, level=1))
    telemetry.replace(last)
    now[0] = 13.5
    assert (telemetry.snapshot, telemetry.received_s, telemetry.age_s) == (last, 11.0, 2.5)
    telemetry.forget()
    telemetry.forget()
    assert (telemetry.snapshot, telemetry.age_s) == (None, None)


def test_each_snapshot_is_exchanged_for_the_one_before() -> None:
    telemetry = EngineTelemetry(lambda: 0.0)
    first, second = snapshot(step=1), snapshot(step=2)
    assert [telemetry.replace(first), telemetry.replace(second)] == [None, first]
