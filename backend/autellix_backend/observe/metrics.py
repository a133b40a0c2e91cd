"""The gateway's Prometheus metrics; labels take values from fixed sets only, so their number is bounded."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from autellix_backend.observe.call_metrics import LATENCY_BUCKETS_S, CallMetrics
from autellix_backend.observe.dispatch_metrics import DispatchMetrics
from autellix_backend.observe.engine_metrics import EngineMetrics
from autellix_backend.observe.swap_metrics import SwapMetrics

CONTENT_TYPE = CONTENT_TYPE_LATEST


class GatewayMetrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "autellix_calls",
            "Calls that were settled.",
            ("outcome", "source", "engine"),
            registry=self.registry,
        )
        self.duration_s = Histogram(
            "autellix_call_duration_seconds",
            "From a call's arrival to its settlement.",
            ("engine",),
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.wait_s = Counter(
            "autellix_wait_seconds", "Waiting in engines, as accounted.", ("engine",), registry=self.registry
        )
        self.service_s = Counter(
            "autellix_service_seconds",
            "Service by engines, as accounted.",
            ("engine",),
            registry=self.registry,
        )
        self.preemptions = Counter(
            "autellix_preemptions", "Preemptions in engines.", ("engine",), registry=self.registry
        )
        self.call_facts = CallMetrics(self.registry)
        self.tenant_calls = Counter(
            "autellix_tenant_calls",
            "Calls of each tenant that were settled; none without a tenants file.",
            ("tenant", "outcome"),
            registry=self.registry,
        )
        self.tenant_service_s = Counter(
            "autellix_tenant_service_seconds",
            "Service by engines for each tenant; none without a tenants file.",
            ("tenant",),
            registry=self.registry,
        )
        self.refusals = Counter(
            "autellix_refusals",
            "Requests refused by a limit or for their key; `tenant` is empty where it is not known.",
            ("tenant", "reason"),
            registry=self.registry,
        )
        self.accounts = Counter(
            "autellix_accounts",
            "Accounting records from engines: matched to a call, too late for one, or malformed.",
            ("result",),
            registry=self.registry,
        )
        self.retries = Counter(
            "autellix_upstream_retries",
            "Calls sent again after a reset before the first byte.",
            ("engine",),
            registry=self.registry,
        )
        self.identity_conflicts = Counter(
            "autellix_identity_conflicts",
            "Calls with two sources that name different programs: the one that won, and the other.",
            ("kept", "dropped"),
            registry=self.registry,
        )
        self.identity_malformed = Counter(
            "autellix_identity_malformed",
            "Foreign names with a value that is no id; the call went on without it.",
            ("source",),
            registry=self.registry,
        )
        self.reaped = Counter(
            "autellix_reaped", "What the reaper removed.", ("kind",), registry=self.registry
        )
        self.engine_up = Gauge(
            "autellix_engine_up", "Whether calls are sent to the engine.", ("engine",), registry=self.registry
        )
        self.engine_restarts = Counter(
            "autellix_engine_restarts",
            "Restarts of an engine that died or hung, failed attempts included.",
            ("engine",),
            registry=self.registry,
        )
        self.event_listeners = Gauge(
            "autellix_event_listeners", "Open connections to the feed of events.", registry=self.registry
        )
        self.events_dropped = Counter(
            "autellix_events_dropped",
            "Events that listeners missed because they read too slowly.",
            registry=self.registry,
        )
        self.engines = EngineMetrics(self.registry)
        self.swaps = SwapMetrics(self.registry)
        self.dispatch = DispatchMetrics(self.registry)
        self._store_up = Gauge(
            "autellix_store_up",
            "Whether the process table that gateways share can be used; always 1 for one in memory.",
            registry=self.registry,
        )
        self.kv_event_blocks = Gauge(
            "autellix_kv_event_blocks",
            "KV blocks of known programs in the engine's cache, by its KV events.",
            ("engine",),
            registry=self.registry,
        )
        self.store_fallbacks = Counter(
            "autellix_store_fallbacks",
            "Operations on the process table that this gateway's copy alone has answered.",
            registry=self.registry,
        )
        self._held = Gauge("autellix_held", "What the store holds.", ("kind",), registry=self.registry)

    def set_engine(self, engine: str, *, is_up: bool, is_restarting: bool = False) -> None:
        """Record the state that an engine has entered."""
        self.engine_up.labels(engine).set(is_up)
        self.engine_restarts.labels(engine).inc(is_restarting)

    def forget_engine(self, engine: str) -> None:
        """Remove the series of an engine that has left."""
        own = (self.calls, self.duration_s, self.wait_s, self.service_s, self.preemptions, self.retries)
        more = (self.engine_up, self.engine_restarts, self.kv_event_blocks)
        parts = (
            self.call_facts.of_engines,
            self.dispatch.of_engines,
            self.engines.of_engines,
            self.swaps.of_engines,
        )
        self.swaps.forget(engine)
        for metric in itertools.chain(own, more, *parts):
            metric.remove_by_labels({"engine": engine})

    def follow_store(self, failure: Callable[[], str | None]) -> None:
        """Have the process table's state read whenever metrics are asked for."""
        self._store_up.set_function(lambda: failure() is None)

    def set_held(self, *, programs: int, sessions: int, active_calls: int) -> None:
        """Record how much the store holds."""
        self._held.labels("programs").set(programs)
        self._held.labels("sessions").set(sessions)
        self._held.labels("active_calls").set(active_calls)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
