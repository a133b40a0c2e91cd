"""The gauges of engines' queues."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from autellix_backend.core.snapshot import EngineSnapshot
from autellix_backend.observe.engine_metrics import EngineMetrics

SNAPSHOT = EngineSnapshot(
    step=9,
    mean_step_s=0.02,
    running=3,
    waiting=5,
    slots=4,
    kv_used_blocks=6,
    kv_total_blocks=8,
    kv_block_tokens=16,
    is_block_short=False,
    level_calls=(8,),
    calls=(),
)


def test_a_snapshot_becomes_gauges_until_it_is_cleared() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    metrics.set("a", SNAPSHOT, 0.4)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value("autellix_engine_" + name, {"engine": "a", **labels})

    assert (value("calls", state="running"), value("calls", state="waiting")) == (3, 5)
    assert (value("kv_blocks", kind="used"), value("kv_blocks", kind="total")) == (6, 8)
    assert (value("slots"), value("step_seconds"), value("snapshot_age_seconds")) == (4, 0.02, 0.4)
    metrics.clear()
    assert (value("slots"), value("calls", state="running")) == (None, None)
