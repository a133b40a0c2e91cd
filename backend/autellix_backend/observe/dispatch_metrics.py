"""Metrics of the way from the gateway into an engine."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class DispatchMetrics:
    """What waits for engines, and what became of calls on the way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.redispatches = Counter(
            "autellix_redispatches",
            "Calls sent again because the engine died before the first byte of their answer.",
            ("engine",),
            registry=registry,
        )
        self.held_s = Histogram(
            "autellix_held_seconds",
            "How long calls waited at the gateway before they were sent to the engine, or gave up.",
            ("engine",),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._breaker_open = Gauge(
            "autellix_engine_breaker_open",
            "Whether the circuit breaker keeps calls from the engine.",
            ("engine",),
            registry=registry,
        )
        self._held_calls = Gauge(
            "autellix_held_calls",
            "Calls that wait at the gateway for the engine.",
            ("engine",),
            registry=registry,
        )
        self._unanswered_calls = Gauge(
            "autellix_unanswered_calls",
            "Calls without a byte of their answer, at the gateway or the engine.",
            ("engine",),
            registry=registry,
        )
        self._unanswered_bytes = Gauge(
            "autellix_unanswered_bytes", "Bytes of the bodies of those calls.", ("engine",), registry=registry
        )
        self.of_engines = (
            self.redispatches,
            self.held_s,
            self._breaker_open,
            self._held_calls,
            self._unanswered_calls,
            self._unanswered_bytes,
        )
        """Those that have a label for the engine."""

    def set_queue(
        self,
        engine: str,
        *,
        held_calls: int,
        unanswered_calls: int,
        unanswered_bytes: int,
        is_breaker_open: bool,
    ) -> None:
        """Record what waits for an engine, and whether calls are kept from it."""
        self._breaker_open.labels(engine).set(is_breaker_open)
        self._held_calls.labels(engine).set(held_calls)
        self._unanswered_calls.labels(engine).set(unanswered_calls)
        self._unanswered_bytes.labels(engine).set(unanswered_bytes)
