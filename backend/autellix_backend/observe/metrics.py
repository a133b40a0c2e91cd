"""The gateway's Prometheus metrics.

Labels take values from bounded sets only, so the number of series is bounded.
`docs/reference/metrics.md` lists them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import version

from prometheus_client import Counter, Info, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from autellix_backend.identity.aliases import VENDOR_SESSION
from autellix_backend.identity.identity import Identity
from autellix_backend.observe.bounded_labels import OTHER, LearnedLabels
from autellix_backend.observe.metric_factory import MetricFactory
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.reports.snapshot import AdmissionSnapshot, EngineSnapshot, KvOffloadTotals

CONTENT_TYPE = CONTENT_TYPE_LATEST
TOKEN_BUCKETS_S = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0)
"""Buckets (s) of the time per output token."""
PROGRAM_BUCKETS_S = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)
MAX_MODELS = 32
MAX_VENDOR_HEADERS = 32
MAX_CLIENTS = 32
"""Models with series of their own; the number of adapters has no bound."""

_ENGINE_GAUGES = {
    "engine_saturation": ("What its programs need over what the engine has.", "model"),
    "queued_calls": ("Calls in the gateway's queue.",),
    "unanswered_calls": ("Calls without a byte of their answer.",),
    "unanswered_bytes": ("Bytes of the bodies of calls without a byte of their answer.",),
    "engine_calls": ("Running and waiting calls.", "state"),
    "engine_slots": ("The engine's batch slots.",),
    "engine_kv_blocks": ("Used and total KV blocks.", "kind"),
    "engine_step_seconds": ("Mean duration of the latest steps.",),
    "engine_snapshot_age_seconds": ("Age of the latest snapshot.",),
    "boost_strength_seconds": ("The most by which little work counts as an earlier arrival.",),
    "active_programs": ("Programs whose calls may run.",),
    "inactive_programs": ("Programs that wait for KV memory.",),
    "working_set_tokens": ("Contexts of the active programs.",),
    "working_set_capacity_tokens": ("KV tokens that the contexts of active programs may fill.",),
}
"""Text, and labels beside the engine, by name."""
_NOTHING = KvOffloadTotals(0, 0, 0.0, 0, 0, 0.0, 0, 0)


class CallMetrics:
    """Counts settled calls."""

    def __init__(self, make: MetricFactory) -> None:
        # The labels of calls repeat, and prometheus_client's lookup costs more than its counting.
        self.series = cache(lambda metric, *labels: metric.labels(*labels))
        self._models = LearnedLabels(MAX_MODELS)
        self._calls = make.counter("calls", "Settled calls.", "outcome", "source", "engine", "model")
        self._duration_s = make.latency(
            "call_duration_seconds", "Arrival of a call to settlement.", "engine", "model"
        )
        self._total_wait_s = make.counter(
            "wait_seconds", "Waiting, by the engines' reports.", "engine", "reason"
        )
        self._service_s = make.counter("service_seconds", "Service, by the engines' reports.", "engine")
        self._preemptions = make.counter("preemptions", "Preemptions in engines.", "engine")
        self._tenant_calls = make.counter("tenant_calls", "Settled calls by tenant.", "tenant", "outcome")
        self._tenant_service_s = make.counter("tenant_service_seconds", "Service by tenant.", "tenant")
        self._wait_s = make.latency(
            "engine_wait_seconds", "Waiting of a call in its engine's queues, by its last level.", "level"
        )
        self._priority_wait_s = make.latency(
            "priority_wait_seconds", "Waiting of a call, by the priority of its program.", "priority"
        )
        self._first_token_s = make.latency(
            "time_to_first_token_seconds", "Arrival of a streamed call to its first bytes.", "engine", "model"
        )
        self._output_token_s = make.latency(
            "time_per_output_token_seconds",
            "Time between the output tokens of a streamed call, after the first.",
            "engine",
            "model",
            buckets=TOKEN_BUCKETS_S,
        )
        self._tokens = make.counter("tokens", "Prompt, cached and output tokens.", "engine", "model", "kind")
        self._moves = make.counter("level_changes", "Demotions and promotions of calls.", "engine", "kind")

    def take(self, call: SettledCall) -> None:
        """Count a call."""
        series, engine, receipt = self.series, call.engine, call.receipt
        usage, duration_s, output_token_s = call.engine_usage, call.duration_s, call.output_token_s
        model = self._models.of(call.model, is_known=call.outcome is Outcome.OK)
        series(self._calls, call.outcome, call.identity_source, engine, model).inc()
        series(self._duration_s, engine, model).observe(duration_s)
        series(self._service_s, engine).inc(receipt.service_s)
        series(self._total_wait_s, engine, "inactive").inc(receipt.inactive_s)
        series(self._total_wait_s, engine, "slot").inc(max(0.0, receipt.wait_s - receipt.inactive_s))
        series(self._priority_wait_s, call.start.hints.priority.value).observe(receipt.wait_s)
        _add(series(self._preemptions, engine), receipt.preemptions)
        if call.tenant:
            series(self._tenant_calls, call.tenant, call.outcome).inc()
            series(self._tenant_service_s, call.tenant).inc(receipt.service_s)
        if receipt.level is not None:
            series(self._wait_s, str(receipt.level)).observe(receipt.wait_s)
        if call.first_token_s is not None and call.outcome is Outcome.OK:
            series(self._first_token_s, engine, model).observe(call.first_token_s)
        if output_token_s is not None:
            series(self._output_token_s, engine, model).observe(output_token_s)
        for kind in ("prompt", "cached", "output"):
            _add(series(self._tokens, engine, model, kind), getattr(usage, f"{kind}_tokens", 0))
        _add(series(self._moves, engine, "demotion"), receipt.demotions)
        _add(series(self._moves, engine, "promotion"), receipt.promotions)


def _add(counter: Counter, amount: int | None) -> None:
    """Count an amount, which is usually zero; the series exists in any case."""
    if amount:
        counter.inc(amount)


class ProgramMetrics:
    """Counts ended programs by the names that the operator chose."""

    def __init__(self, make: MetricFactory, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._duration_s = make.latency(
            "program_duration_seconds",
            "First arrival of an ended program to its last answer.",
            "name",
            buckets=PROGRAM_BUCKETS_S,
        )
        self._token_s = make.latency(
            "program_token_seconds",
            "Duration of an ended program over its output tokens.",
            "name",
            buckets=TOKEN_BUCKETS_S,
        )
        self._part_s = make.counter(
            "program_part_seconds", "Durations of ended programs by what they were spent on.", "name", "part"
        )

    def take(self, name: str | None, spent_s: Mapping[str, float], output_tokens: int) -> None:
        """Count a program by the parts of its duration (s)."""
        label, duration_s = name if name in self._names else OTHER, sum(spent_s.values())
        self._duration_s.labels(label).observe(duration_s)
        if output_tokens:
            self._token_s.labels(label).observe(duration_s / output_tokens)
        for part, seconds in spent_s.items():
            self._part_s.labels(label, part).inc(seconds)


class EngineGauges:
    """The state of the engines at the last scrape; what an engine does not have, it has no value of."""

    def __init__(self, make: MetricFactory) -> None:
        self._gauges = {
            name: make.gauge(name, text, "engine", *labels)
            for name, (text, *labels) in _ENGINE_GAUGES.items()
        }

    def clear(self) -> None:
        """Remove all values."""
        for gauge in self._gauges.values():
            gauge.clear()

    def set(self, engine: str, **values: float | Mapping[str, float] | None) -> None:
        """Set gauges of an engine by their names: to a value, or to one for each label."""
        for name, value in values.items():
            gauge = self._gauges[name]
            if isinstance(value, Mapping):
                for label, part in value.items():
                    gauge.labels(engine, label).set(part)
            elif value is not None:
                gauge.labels(engine).set(value)

    def set_snapshot(self, engine: str, snapshot: EngineSnapshot, age_s: float) -> None:
        """Record an engine's last snapshot."""
        self.set(
            engine,
            engine_calls={"running": snapshot.running, "waiting": snapshot.waiting},
            engine_slots=snapshot.slots,
            engine_kv_blocks={"used": snapshot.kv_used_blocks, "total": snapshot.kv_total_blocks},
            engine_step_seconds=snapshot.mean_step_s,
            engine_snapshot_age_seconds=age_s,
            boost_strength_seconds=None if snapshot.boost is None else snapshot.boost.strength_s,
        )

    def set_working_set(self, engine: str, working_set: AdmissionSnapshot) -> None:
        """Record an engine's working set, as it reports it or as the gateway estimates it."""
        self.set(
            engine,
            active_programs=working_set.active_programs,
            inactive_programs=working_set.inactive_programs,
            working_set_tokens=working_set.working_set_tokens,
            working_set_capacity_tokens=working_set.capacity_tokens,
        )


class OffloadMetrics:
    """KV blocks that engines store to host memory and load, from the totals in their snapshots."""

    def __init__(self, make: MetricFactory) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return make.counter("kv_offload_" + name, text, "engine", *labels)

        copied = counter("bytes", "Bytes of stored and loaded KV blocks.", "direction")
        transfers = counter("transfers", "Copies between the memories.", "direction")
        seconds = counter("seconds", "Seconds of the copies, without queueing.", "direction")
        hits = counter("hit_chunks", "Chunks found in host memory and loaded.")
        refused = counter("refused_chunks", "Chunks not stored because host memory was in use.")
        # In the order of the totals.
        self._counters: tuple[tuple[Counter, *tuple[str, ...]], ...] = (
            *((copied, "store"), (transfers, "store"), (seconds, "store")),
            *((copied, "load"), (transfers, "load"), (seconds, "load")),
            *((hits,), (refused,)),
        )
        self._counted: dict[str, KvOffloadTotals] = {}

    def advance(self, engine: str, totals: KvOffloadTotals) -> None:
        """Count the difference to an engine's last totals."""
        before = self._counted.get(engine, _NOTHING)
        if any(new < old for new, old in zip(totals, before, strict=True)):
            # A restarted engine counts from zero.
            before = _NOTHING
        self._counted[engine] = totals
        for (metric, *labels), new, old in zip(self._counters, totals, before, strict=True):
            metric.labels(engine, *labels).inc(new - old)

    def forget(self, engine: str) -> None:
        """Count a later engine of this name from zero."""
        self._counted.pop(engine, None)


class GatewayMetrics:
    """The metrics of one gateway, in their own registry."""

    def __init__(self, program_names: Iterable[str] = ()) -> None:
        """Create the metrics; these program names get series of their own."""
        self._make = make = MetricFactory()
        self.registry = make.registry
        ProcessCollector(registry=make.registry)
        Info("autellix_build", "The release of Autellix.", registry=make.registry).info(
            {"version": version("autellix")}
        )
        self.calls = CallMetrics(make)
        self.programs = ProgramMetrics(make, program_names)
        self.refusals = make.counter(
            "refusals", "Requests refused for a limit or their key.", "tenant", "reason"
        )
        self.reports = make.counter("reports", "Engine reports: matched, late or malformed.", "result")
        self.retries = make.counter(
            "upstream_retries", "Calls sent again after a reset before the first byte.", "engine"
        )
        self._identity_conflicts = make.counter(
            "identity_conflicts", "Calls with two sources that name different programs.", "kept", "dropped"
        )
        self._identity_malformed = make.counter(
            "identity_malformed",
            "Invalid ids and hints in other tools' headers and fields, ignored.",
            "source",
        )
        self._vendor_sessions = make.counter(
            "identity_vendor_sessions", "Calls whose program an unlisted header names.", "header"
        )
        self._vendor_headers = LearnedLabels(MAX_VENDOR_HEADERS)
        self._prefix_calls = make.counter(
            "prefix_calls", "Calls whose program had a context to be found.", "client"
        )
        self._prefix_breaks = make.counter(
            "prefix_breaks", "Calls that found less of that than there was, by why.", "kind", "client"
        )
        self._clients = LearnedLabels(MAX_CLIENTS)
        self.reaped = make.counter("reaped", "Idle programs and lost sessions removed.", "kind")
        self.engine_up = make.gauge("engine_up", "Whether the engine receives calls.", "engine")
        self.engine_refusing = make.gauge(
            "engine_refusing", "Whether the engine fails calls by its own fault, and is paused.", "engine"
        )
        self.engine_reports = make.gauge("engine_reports", "Whether the engine's reports arrive.", "engine")
        self.engine_degraded = make.gauge(
            "engine_degraded", "Whether our scheduler does not fit the engine or has failed there.", "engine"
        )
        self.engine_restarts = make.counter(
            "engine_restarts", "Restarts of a dead or hung engine, failed attempts included.", "engine"
        )
        self.event_subscribers = make.gauge("event_subscribers", "Open connections to the event feed.")
        self.events_dropped = make.counter("events_dropped", "Events that slow subscribers missed.")
        self.engines = EngineGauges(make)
        self.offload = OffloadMetrics(make)
        self.redispatches = make.counter(
            "redispatches", "Calls sent to another engine because this one died or refused them.", "engine"
        )
        self.queue_s = make.latency("queue_seconds", "Waiting of a call in the gateway's queue.", "engine")
        self.store_fallbacks = make.counter(
            "store_fallbacks", "Operations that a table in memory answered in place of the shared one."
        )
        self._store_up = make.gauge("store_up", "Whether the process table can be reached.")
        self._stored = make.gauge("stored", "Entries in the store.", "kind")

    def count_refusal(self, tenant: str, reason: str) -> None:
        """Count a refused request; `tenant` is empty if none is known or at fault."""
        self.refusals.labels(tenant, reason).inc()

    def count_identity(self, identity: Identity) -> None:
        """Count what is odd about the ids and hints of a call."""
        aliases = identity.aliases
        for kept, dropped in aliases.conflicts:
            self._identity_conflicts.labels(kept, dropped).inc()
        if aliases.named_by is not None and aliases.named_by.source == VENDOR_SESSION:
            header = self._vendor_headers.of(aliases.named_by.header, is_known=True)
            self._vendor_sessions.labels(header).inc()
        for source in (*aliases.malformed, *identity.stated.malformed):
            self._identity_malformed.labels(source).inc()

    def count_prefix(self, client: str, kind: str | None) -> None:
        """Count a call by the name and version of its client, and why it left its prefix, if it did."""
        label = self._clients.of(client, is_known=True)
        self.calls.series(self._prefix_calls, label).inc()
        if kind is not None:
            self._prefix_breaks.labels(kind, label).inc()

    def set_engine(self, engine: str, *, is_up: bool, is_restarting: bool = False) -> None:
        """Record the new state of an engine."""
        self.engine_up.labels(engine).set(is_up)
        self.engine_restarts.labels(engine).inc(is_restarting)

    def forget_engine(self, engine: str) -> None:
        """Remove the series of an engine that has left."""
        self.offload.forget(engine)
        self.calls.series.cache_clear()
        self._make.forget_engine(engine)

    def follow_store(self, failure: Callable[[], str | None]) -> None:
        """Read the process table's state at every scrape."""
        self._store_up.set_function(lambda: failure() is None)

    def set_stored(self, *, programs: int, sessions: int, active_calls: int) -> None:
        """Record how much the store holds."""
        self._stored.labels("programs").set(programs)
        self._stored.labels("sessions").set(sessions)
        self._stored.labels("active_calls").set(active_calls)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
