"""The last report of each engine."""

from __future__ import annotations

from tests.gateway.snapshots import snapshot, standing

from autellix_backend.core.snapshot import EngineSnapshot
from autellix_backend.gateway.engines.telemetry import SnapshotBoard


def test_the_last_report_stays_with_its_age() -> None:
    now = [10.0]
    reports = SnapshotBoard(lambda: now[0])
    assert reports.get("a") is None
    reports.take("a", snapshot())
    now[0] = 11.0
    last = snapshot(standing("p", place=1, level=1))
    reports.take("a", last)
    found = reports.get("a")

    assert found is not None
    assert (found.snapshot, found.received_s) == (last, 11.0)
    reports.forget("a")
    reports.forget("a")
    assert reports.get("a") is None


def test_a_listener_learns_of_each_report_and_the_one_before() -> None:
    told: list[tuple[str, EngineSnapshot | None, EngineSnapshot]] = []
    reports = SnapshotBoard(lambda: 0.0, lambda *report: told.append(report))
    first, second = snapshot(step=1), snapshot(step=2)
    reports.take("a", first)
    reports.take("a", second)

    assert told == [("a", None, first), ("a", first, second)]
