"""One engine of the pool with everything that the gateway keeps for it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping

from autellix_backend.core.balance import EngineLoad
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.balance.speed import Speed, SpeedEstimate, fastest
from autellix_backend.engines.base import Engine
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.report_client import LinkState, ReportClient
from autellix_backend.engines.supervisor import EngineChange, EngineState, Supervisor
from autellix_backend.gateway.engines.in_flight import InFlightBound
from autellix_backend.gateway.engines.ordering import ArrivalOrdering, make_ordering
from autellix_backend.gateway.engines.queue import EngineQueue
from autellix_backend.gateway.engines.refusals import Caller, Refusals
from autellix_backend.gateway.engines.reporting import Reporting, reporting_of
from autellix_backend.gateway.engines.snapshots import LatestSnapshots
from autellix_backend.gateway.engines.upstream import Upstream
from autellix_backend.gateway.errors import OverloadedError
from autellix_backend.observe.metrics import EngineGauges, GatewayMetrics
from autellix_backend.observe.operator_log import EventLines
from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.ended import EndedPrograms
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import AdmissionSnapshot, EngineSnapshot
from autellix_backend.settings import Settings

logger = logging.getLogger(__name__)

USUAL_SLOTS = 256
"""vLLM's default batch slots on most devices, for an engine whose number is unknown."""
MAX_WAITING_CALLS = 10_000
"""Calls of an engine that may wait for the first byte of their answer, in the gateway or the engine."""
MAX_WAITING_BYTES = 2**30
"""The total bytes of their bodies, which the gateway keeps to send them once more."""


class AdmissionBounds:
    """Admits calls while both bounds hold; a call counts until the first byte of its answer."""

    def __init__(self, engine: str, metrics: GatewayMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self.calls = 0
        self.size_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Return whether another call with a body of this size is within the bounds."""
        return self.calls < MAX_WAITING_CALLS and self.size_bytes + size_bytes <= MAX_WAITING_BYTES

    def admit(self, size_bytes: int) -> None:
        """Admit a call with a body of this size.

        Raises:
            OverloadedError: if it would exceed a bound.
        """
        if not self.has_room(size_bytes):
            is_full = self.calls >= MAX_WAITING_CALLS
            self._metrics.count_refusal("", "queue_calls" if is_full else "queue_bytes")
            limit = f"{MAX_WAITING_CALLS} calls" if is_full else f"{MAX_WAITING_BYTES} bytes"
            raise OverloadedError(self._engine, limit)
        self.add(size_bytes)

    def add(self, size_bytes: int) -> None:
        """Admit a call without regard to the bounds, because another engine's bounds admitted it before."""
        self.calls += 1
        self.size_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Count a call no longer, because its answer has begun or it has left."""
        self.calls -= 1
        self.size_bytes -= size_bytes


OnSnapshot = Callable[[str, EngineSnapshot | None, EngineSnapshot], None]


class EngineHandle:
    """An engine with its supervisor, queue and connections, and the gateway's view of its load."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        metrics: GatewayMetrics,
        *,
        gateway_id: str,
        hides_keys: bool,
        clock: Callable[[], float],
        can_move: Callable[[Caller, bool], bool],
        on_report: Callable[[str, EngineReport], None],
        on_snapshot: OnSnapshot,
        on_link_change: Callable[[EngineHandle], None],
    ) -> None:
        """Connect nothing yet.

        Args:
            engine: The engine, which has been started.
            settings: The tree of settings.
            metrics: Count what happens to its calls.
            gateway_id: The id that the engine's reports for this gateway name.
            hides_keys: Whether clients' keys are the gateway's own, which no engine may see.
            clock: Monotonic seconds.
            can_move: Returns whether another engine accepts such calls, and with True also whether one does
                that is paused.
            on_report: Is called with the engine's name and each report.
            on_snapshot: Is called with the engine's name, its rank's snapshot before, and a new one.
            on_link_change: Is called after each change of the report link.
        """
        limits = settings.engine
        self.engine = engine
        self.name = engine.name
        """The name that receipts show."""
        self.models: Mapping[str, object] = {}
        """The models that it lists, as it describes each; none if that is unknown."""
        self.clock = clock
        self._settings = settings
        self._metrics = metrics
        self._refusal_lines = EventLines(logger)
        self._on_report, self._on_snapshot, self._on_link_change = on_report, on_snapshot, on_link_change
        self.supervisor = Supervisor(engine, limits, clock=clock)
        self.refusals = Refusals(clock, on_change=self._on_refusing)
        self.queue = EngineQueue(
            engine=engine.name,
            ordering=make_ordering(engine, settings),
            supervisor=self.supervisor,
            settings=settings,
            metrics=metrics,
            refusals=self.refusals,
            can_move=can_move,
            clock=clock,
        )
        self.bounds = AdmissionBounds(engine.name, metrics)
        self.upstream = Upstream(engine, settings, metrics, hides_keys=hides_keys)
        self.link = ReportClient(
            engine.report_secret if isinstance(engine, RayReplica) else limits.report_secret,
            gateway_id,
            on_message=self.on_message,
            on_change=self._on_link_changed,
        )
        self.in_flight = InFlightBound(
            engine,
            self.queue,
            limits.max_in_flight,
            is_plain=self._is_plain,
            on_change=lambda: self._on_link_change(self),
        )
        self.snapshots = LatestSnapshots()
        self.open_calls = 0
        """This gateway's requests at the engine or queued for it."""
        self.is_leaving = False
        """Whether it is removed with the end of its last request."""
        self.on_unused: Callable[[], None] = lambda: None
        """Is called at the end of the last request of an engine that leaves."""
        self.speed = Speed()
        self.ended = EndedPrograms()
        """The programs whose end it has not received."""
        self._processes: dict[int, str] = {}
        """The processes that its reports come from, by rank."""
        metrics.set_engine(engine.name, is_up=True)
        metrics.engine_reports.labels(engine.name).set_function(lambda: self.sends_reports)
        metrics.engine_degraded.labels(engine.name).set_function(lambda: self.link.degraded is not None)
        self.supervisor.subscribe(self.on_change)
        self.supervisor.watch_silence(self.silence_s)

    @property
    def sends_reports(self) -> bool:
        """Whether its reports of what calls cost arrive here at present."""
        return self.link.is_up and not self.link.runs_own_order

    @property
    def reporting(self) -> Reporting:
        """What it reports, and who orders its calls."""
        if not self.engine.is_alive():
            return Reporting(state=LinkState.CONNECTING, text="it has not answered yet")
        return reporting_of(
            self.link if self.engine.report_endpoints else None,
            self._settings.scheduler,
            is_ordered_here=self.queue.has_policy and self.in_flight.is_ordered_here,
            order=self.in_flight.text(self._settings.scheduler.policy),
        )

    @property
    def max_in_flight(self) -> int | None:
        """The bound on our calls there that applies at present; None if the engine takes all."""
        calls = self.queue.ordering.slots
        return int(calls) if calls < math.inf else None

    @property
    def state(self) -> str:
        """Return `leaving`, `draining`, `refusing` if it fails all calls, or the supervisor's state."""
        if self.is_leaving:
            return "leaving"
        if self.is_draining:
            return "draining"
        is_refusing = self.supervisor.is_up and self.refusals.is_refusing
        return "refusing" if is_refusing else self.supervisor.state.value

    @property
    def problem(self) -> str | None:
        """Why it is not up, or what it answers in place of answers; None if it serves."""
        return self.engine.failure() or self.supervisor.reason or self.refusals.problem

    @property
    def is_draining(self) -> bool:
        """Whether it gets no further calls."""
        return self.queue.is_draining

    def hold(self) -> None:
        """Count one more request; the engine does not leave until it is released."""
        self.open_calls += 1

    def release(self) -> None:
        """Count one request less."""
        self.open_calls -= 1
        if self.is_leaving and not self.open_calls:
            self.on_unused()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold it for a request that is no call."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def leave(self) -> None:
        """Leave with the end of the last request."""
        self.is_leaving = True
        if not self.open_calls:
            self.on_unused()

    def is_accepting(self) -> bool:
        """Return whether calls may be sent to it; no I/O."""
        return not self.is_draining and self.queue.can_send()

    def open(self) -> None:
        """Start receiving its reports and supervising it; must be called in the event loop."""
        self._open_link()
        self.upstream.open()
        self.supervisor.open()
        self.in_flight.open()

    async def close(self) -> None:
        """Undo open() and close the connections; the engine itself keeps running."""
        await self.in_flight.close()
        await self.supervisor.close()
        await self.upstream.close()
        await self.link.close()

    def on_change(self, change: EngineChange) -> None:
        """Drop what is out of date when the engine is no longer up."""
        # Whatever it answered before is no longer true.
        self.refusals.reset()
        if change.state is EngineState.UP:
            self._open_link()
            self._order_here()
            return
        self._forget()

    def _on_refusing(self, is_refusing: bool) -> None:
        self._metrics.engine_refusing.labels(self.name).set(is_refusing)
        if is_refusing:
            self._refusal_lines.write(
                logging.WARNING, f"{self.name} is {self.refusals.problem}", self.refusals.shared
            )
        else:
            self._refusal_lines.write(logging.INFO, f"{self.name} refuses no calls any more")

    def review(self) -> None:
        """Send, move or refuse queued calls, and cut off the sent ones if the engine has fallen silent."""
        if self.supervisor.is_silent:
            self.upstream.cut_off()
        self.queue.pump()
        self.queue.judge()

    def on_message(self, message: bytes) -> None:
        """Take what the engine sent over the report link: a report of a request, or a snapshot."""
        try:
            if EngineSnapshot.is_one(message):
                snapshot = EngineSnapshot.from_bytes(message)
                self._on_snapshot(self.name, self.put_snapshot(snapshot), snapshot)
            else:
                self._on_report(self.name, EngineReport.from_bytes(message))
        except ReportError:
            self._metrics.reports.labels("malformed").inc()

    def _on_link_changed(self) -> None:
        """Let an engine with our scheduler order its own calls; order any other's here."""
        processes = {rank: facts.engine for rank, facts in self.link.facts.items()}
        if any(self._processes.get(rank, process) != process for rank, process in processes.items()):
            # It was restarted between two probes.
            self._forget()
        self._processes = processes
        if self.link.runs_own_order:
            # It does not send another one.
            self.snapshots.clear()
        if self.sends_reports and self.queue.has_policy:
            self.queue.use(ArrivalOrdering())
        else:
            self._order_here()
        self._on_link_change(self)

    def _is_plain(self) -> bool:
        """Return whether it is known to have no scheduler of ours that works."""
        is_absent = not self.engine.report_endpoints or self.link.state is LinkState.ABSENT
        return is_absent or self.link.runs_own_order

    def _order_here(self) -> None:
        """Order the calls of an engine without our scheduler, as far as it states what that needs."""
        if self._is_plain() and self.supervisor.is_up and not self.queue.has_policy:
            self.in_flight.reset()
            self.queue.use(make_ordering(self.engine, self._settings))

    def _open_link(self) -> None:
        # An engine that did not answer yet may be of any kind.
        if self.engine.report_endpoints:
            self.link.open(self.engine.report_endpoints)

    def _forget(self) -> None:
        """Drop what was known of the engine's calls."""
        self.snapshots.clear()
        self.ended.clear()
        self.in_flight.reset()
        self.queue.limit(self.in_flight.calls)

    def on_program_ended(self, program_id: str) -> None:
        """Free what is kept for a program here and in the engine."""
        if self.ended.on_program_ended(program_id):
            self.link.end_program(program_id)
        self.queue.on_program_ended(program_id)

    @property
    def admission(self) -> AdmissionSnapshot | None:
        """Its working set as its last snapshot shows it, else as estimated here; None without admission."""
        snapshot = self.snapshots.merged
        return self.queue.ordering.working_set() if snapshot is None else snapshot.admission

    @property
    def memory(self) -> MemoryReport | None:
        """The same numbers in the balancer's form; None without admission."""
        if self.snapshots.merged is None:
            return self.queue.ordering.memory(self.clock())
        return self.snapshots.memory

    @property
    def slots(self) -> int:
        """The calls that it runs at once, as far as that is known."""
        if self.supervisor.is_up and self.snapshots.merged is not None:
            return max(1, self.snapshots.merged.slots)
        if ranks := self.link.facts.values():
            return sum(facts.slots for facts in ranks)
        bound = self.in_flight.calls
        batch = self._settings.engine.max_num_seqs if self.engine.is_owned else None
        slots = bound if bound < math.inf else batch or USUAL_SLOTS
        return int(max(1, min(slots, self.in_flight.running)))

    def silence_s(self) -> float:
        """Return the seconds since a reporting engine with open calls last sent anything."""
        busy_since_s = self.queue.busy_since_s
        if not self.sends_reports or busy_since_s is None:
            return 0.0
        return self.clock() - max(self.snapshots.arrived_s or 0.0, busy_since_s)

    @property
    def snapshot_age_s(self) -> float | None:
        """Return the time since its last snapshot arrived."""
        arrived_s = self.snapshots.arrived_s
        return None if arrived_s is None else self.clock() - arrived_s

    def put_snapshot(self, snapshot: EngineSnapshot) -> EngineSnapshot | None:
        """Keep a snapshot that one of its ranks sent; return that rank's one before."""
        return self.snapshots.put(snapshot, self.clock(), self.open_calls)

    @property
    def saturation(self) -> float | None:
        """What its programs need over what it has; None while it is not up."""
        if not self.supervisor.is_up:
            return None
        return self.load(fastest((self.speed,)), is_accepting=True).saturation

    def measure(self, gauges: EngineGauges) -> None:
        """Set the gauges of its queue."""
        if (saturation := self.saturation) is not None:
            gauges.set(self.name, engine_saturation={next(iter(self.models), ""): saturation})
        gauges.set(
            self.name,
            queued_calls=len(self.queue),
            unanswered_calls=self.bounds.calls,
            unanswered_bytes=self.bounds.size_bytes,
        )

    def load(self, fastest: SpeedEstimate, *, is_accepting: bool) -> EngineLoad:
        """Return its load at this moment.

        Our own calls are counted here; what its last snapshot holds beyond them are other gateways' calls.
        The fastest engine's speed stands in for its own while that is stale.
        """
        snapshot = self.snapshots.merged if self.supervisor.is_up else None
        slots, others, kv_tokens = self.slots, 0, math.inf
        if ranks := self.link.facts.values():
            kv_tokens = sum(math.inf if facts.kv_tokens is None else facts.kv_tokens for facts in ranks)
        if snapshot is not None:
            others = max(0, snapshot.running + snapshot.waiting - self.snapshots.open_calls)
            kv_tokens = snapshot.kv_total_blocks * snapshot.kv_block_tokens
        # Few open calls are no sign of a free engine if it has failed the last ones.
        calls = self.open_calls + others + len(self.refusals)
        # An engine that is short of KV blocks runs fewer calls than it has slots.
        is_short = snapshot is not None and snapshot.is_block_short
        running = min(calls, snapshot.running if snapshot is not None and is_short else slots)
        speed = self.speed.estimate(fastest)
        return EngineLoad(
            name=self.name,
            running=running,
            waiting=calls - running,
            slots=slots,
            prefill_s_per_token=speed.prefill_s_per_token,
            decode_s_per_token=speed.decode_s_per_token,
            kv_tokens=kv_tokens,
            memory=self.memory if self.supervisor.is_up else None,
            is_accepting=is_accepting,
        )
