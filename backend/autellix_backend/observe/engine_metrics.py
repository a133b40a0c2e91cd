"""Metrics of the engines' queues, from their last snapshots."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from autellix_backend.core.snapshot import EngineSnapshot


class EngineMetrics:
    """The gauges of the engines that send snapshots; others have none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ("engine", *labels), registry=registry)

        self._calls = gauge("autellix_engine_calls", "Calls in the engine: running or waiting.", "state")
        self._slots = gauge("autellix_engine_slots", "Calls that the engine runs at once, at most.")
        self._blocks = gauge(
            "autellix_engine_kv_blocks", "KV blocks of the engine: used, and in all.", "kind"
        )
        self._step_s = gauge("autellix_engine_step_seconds", "Mean duration of the engine's latest steps.")
        self._age_s = gauge(
            "autellix_engine_snapshot_age_seconds", "Age of what the engine told of its queues last."
        )
        self.of_engines = (self._calls, self._slots, self._blocks, self._step_s, self._age_s)

    def clear(self) -> None:
        """Drop all values: of an engine that tells nothing nothing is known."""
        for gauge in self.of_engines:
            gauge.clear()

    def set(self, engine: str, snapshot: EngineSnapshot, age_s: float) -> None:
        """Record an engine's snapshot."""
        self._calls.labels(engine, "running").set(snapshot.running)
        self._calls.labels(engine, "waiting").set(snapshot.waiting)
        self._slots.labels(engine).set(snapshot.slots)
        self._blocks.labels(engine, "used").set(snapshot.kv_used_blocks)
        self._blocks.labels(engine, "total").set(snapshot.kv_total_blocks)
        if snapshot.mean_step_s is not None:
            self._step_s.labels(engine).set(snapshot.mean_step_s)
        self._age_s.labels(engine).set(age_s)
