"""One engine's calls in plain data: drives the scheduler machine and sends the reports.

Nothing here knows vLLM. The machine's call id is the engine's request id, because the children of an `n > 1`
request share one call id; the report carries the caller's call id beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from autellix_backend.core.admission.contexts import KvFill, count_tokens
from autellix_backend.core.arrival import Arrival
from autellix_backend.core.boost import work_of
from autellix_backend.core.call import Call
from autellix_backend.core.machine import Machine
from autellix_backend.core.place import WorkClass
from autellix_backend.core.preemption import StepCosts
from autellix_backend.core.recording import MachineRecorder
from autellix_backend.reports.call_arguments import CallIdentity
from autellix_backend.reports.report import EngineReport
from autellix_backend.vllm_plugin.context import ContextIndex, Hashes
from autellix_backend.vllm_plugin.decoding import DecodingCalls, TrackedCall
from autellix_backend.vllm_plugin.ranks import Rank, boost_units, rank_of
from autellix_backend.vllm_plugin.report_server import ReportServer
from autellix_backend.vllm_plugin.runs import CallRuns
from autellix_backend.vllm_plugin.settings import PluginSettings
from autellix_backend.vllm_plugin.steps import StepTokens

PROGRAM_IDLE_S = 600.0
"""A program without a call for this long counts as ended."""
MAX_PROGRAMS = 16_384
"""With more programs, those that were idle for a part of that time count as ended too."""
_IDLE_SHARES = (1.0, 0.1, 0.01)
_EXPIRE_PERIOD_S = 30.0
_UNBOUNDED = StepCosts(budget=1 << 30, chunk=1 << 30)


@dataclass(slots=True, kw_only=True)
class _Left:
    """A call that has left while steps with it were under way."""

    identity: CallIdentity
    report: EngineReport
    steps: int
    """Steps that are still under way."""
    is_reported: bool


class CallTracker:
    """The calls inside one engine, from arrival to report."""

    def __init__(
        self,
        settings: PluginSettings,
        kv_tokens: float = math.inf,
        block_tokens: int = 1,
        fill: KvFill = count_tokens,
        step_costs: StepCosts = _UNBOUNDED,
        recorder: MachineRecorder | None = None,
    ) -> None:
        """Track the calls of an empty engine.

        Args:
            settings: The plugin's.
            kv_tokens: The tokens that fit into the engine's KV memory.
            block_tokens: Those of a block, as they are hashed.
            fill: How contexts fill the memory.
            step_costs: What a resume costs in steps.
            recorder: Records the events of the machine; None for no record.
        """
        make_machine = Machine if recorder is None else recorder.make_machine
        self.machine = make_machine(settings.scheduler, kv_tokens=kv_tokens, fill=fill)
        self.step_costs = step_costs
        self._contexts = ContextIndex(block_tokens)
        self._needs_contexts = self.machine.admission.memory is not None or self.machine.policy.boosts
        self.reports: ReportServer | None = None
        """Where reports and snapshots go, if the engine has a report address."""
        self.step = 0
        self.running: set[str] = set()
        """The calls in the engine's batch, by request id."""
        self._calls: dict[str, TrackedCall] = {}
        self._decoding = DecodingCalls(self.machine, self._calls)
        self._left: dict[str, _Left] = {}
        self._places: dict[str, int] = {}
        self._next_expiry_s = 0.0

    @property
    def is_reporting(self) -> bool:
        """Whether any gateway is connected."""
        return self.reports is not None and self.reports.has_gateways

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def is_running(self, request_id: str) -> bool:
        """Whether the call is in the engine's batch."""
        return request_id in self.running

    def is_held_back(self, request_id: str) -> bool:
        """Whether admission keeps the call out of the queues."""
        tracked = self._calls.get(request_id)
        return tracked is not None and not tracked.call.is_admitted

    def identity(self, request_id: str) -> CallIdentity:
        """Return the program, thread and tenant of a call."""
        return self._calls[request_id].identity

    def is_decoding(self, request_id: str) -> bool:
        """Whether the last step of a running call decoded, and did not prefill."""
        return self._calls[request_id].runs.is_decoding

    def boost_of(self, work_class: WorkClass | None) -> int:
        """Return the present boost of a class of work, as a part of a rank's number."""
        return boost_units(work_class, self.machine.boost)

    def rank(self, request_id: str) -> Rank | None:
        """Return the call's place in the order of all; None if it is not tracked.

        Calls with a place among all tenants precede the rest, which are in the order of their queue.
        """
        tracked = self._calls.get(request_id)
        if tracked is None:
            return None
        place = self._places.get(request_id)
        return rank_of(tracked.call, self.machine.boost) if place is None else Rank(place)

    def take_to_keep(self) -> list[Hashes]:
        """Return the contexts whose cached blocks should outlive all others, in the order of eviction."""
        return [self._contexts.last_context(each) for each in self.machine.admission.take_to_keep()]

    def arrive(
        self,
        request_id: str,
        identity: CallIdentity,
        now: float,
        *,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        block_hashes: Sequence[Hashable] = (),
        is_prefilled: bool = False,
    ) -> None:
        """Queue a call, whose tokens are its expected size.

        Args:
            request_id: The engine's id of the call.
            identity: Its program, thread and tenant.
            now: The time.
            prompt_tokens: The tokens of its prompt.
            max_tokens: The most that it may decode.
            block_hashes: The chained hashes of the full blocks of its context, none without prefix caching.
            is_prefilled: Whether another engine has prefilled it, and keeps its blocks until it is loaded.
        """
        for program_id in identity.ended:
            self._end(program_id, now)
        arrival, machine = identity.arrival, self.machine
        if identity.spread is not None:
            machine.observe_spread(arrival.tenant, identity.spread)
        context = None
        if self._needs_contexts:
            context = self._contexts.arrive(arrival.program_id, request_id, block_hashes, prompt_tokens)
        arrival = replace(
            arrival,
            call_id=request_id,
            path_id=identity.call_id,
            expected_s=machine.config.nominal_service_s(prompt_tokens, max_tokens),
            context=context,
            is_pinned=is_prefilled,
        )
        if not machine.shares.knows_only(arrival.tenant):
            # From here on the order goes by what tenants have received.
            self._decoding.bring_up(now)
        call = machine.arrive(arrival, now)
        self._calls[request_id] = TrackedCall(
            identity=identity, call=call, arrival_step=self.step, runs=CallRuns(arrival_s=now)
        )

    def take_ends(self, now: float) -> None:
        """End the programs that gateways have ended meanwhile: they free their memory for those that wait."""
        for program_id in self.reports.take_ends() if self.reports is not None else ():
            self._end(program_id, now)

    def lose_contexts(self) -> None:
        """Note that the prefix cache was reset: the next call of a program finds nothing there."""
        self.machine.admission.lose_contexts()
        self._contexts.lose_contexts(self._calls)

    def start(
        self, request_id: str, now: float, cached_tokens: int, *, kept_tokens: int = 0, running: int = 1
    ) -> None:
        """Give a waiting call a slot.

        Args:
            request_id: The call.
            now: The time.
            cached_tokens: What its first start found in the cache.
            kept_tokens: The tokens of its context that are computed already.
            running: The running calls with it.
        """
        self.machine.start(request_id, now)
        call = self._calls[request_id]
        started = call.call
        if started.reached_tokens > kept_tokens:
            lost = started.reached_tokens - kept_tokens
            started.lose(lost, self.step_costs.of(lost, running))
        if started.is_pinned:
            self.machine.unpin(request_id)
        self.running.add(request_id)
        call.runs.start(now)
        if call.cached_tokens is None:
            call.cached_tokens = cached_tokens

    def pin(self, request_id: str) -> None:
        """Note that a waiting call holds KV blocks, which it would keep if it were not admitted."""
        self.machine.pin(request_id)

    def pause(self, request_id: str, now: float) -> None:
        """Let a call wait for its client, with the KV blocks that it holds."""
        self._decoding.stop(request_id, now)
        self.machine.pause(request_id, now)
        self.running.discard(request_id)
        self._calls[request_id].runs.stop(now)

    def resume(self, request_id: str, now: float) -> None:
        """Let a call wait for a slot again, if it was paused."""
        if self.machine.call(request_id).is_paused:
            self.machine.resume(request_id, now)

    def preempt(self, request_id: str, now: float, computed_tokens: int = 0) -> None:
        """Preempt a running call that has computed some tokens of its context."""
        self._decoding.stop(request_id, now)
        self.machine.preempt(request_id, now, computed_tokens=computed_tokens)
        self.running.discard(request_id)
        self._calls[request_id].runs.stop(now)

    def charge(self, tokens: StepTokens, cost_s: float, now: float) -> None:
        """Charge one executed step to every call that was in it, by time or by its tokens."""
        self.step += 1
        prefilled = sum(tokens.prefilled.values())
        work = work_of(prefilled, sum(tokens.decoded.values()))
        self.machine.observe_step(work, cost_s, prefilled=prefilled)
        if self._left:
            tokens = self._charge_left(tokens, cost_s, now)
        for request_id, prefilled in tokens.prefilled.items():
            tracked = self._calls.get(request_id)
            if tracked is not None:
                tracked.engine_steps += 1
                self._decoding.stop(request_id, now)
                tracked.runs.prefill(now)
                charge_s = self._service_s(cost_s, prefilled, 0)
                self.machine.charge_step((tracked.call,), charge_s, now, is_prefill=True, tokens=prefilled)
        self._charge_decoded(tokens.decoded, cost_s, now)
        if now >= self._next_expiry_s:
            self._next_expiry_s = now + _EXPIRE_PERIOD_S
            self._expire(now)

    def _charge_decoded(self, decoded: Mapping[str, int], cost_s: float, now: float) -> None:
        sizes = set(decoded.values())
        for tokens in sizes:
            # Of drafts, calls decode several.
            alike = decoded
            if len(sizes) > 1:
                alike = {name: each for name, each in decoded.items() if each == tokens}
            self._decoding.charge(alike, self._service_s(cost_s, 0, tokens), now, tokens=tokens)

    def bring_up(self, now: float) -> None:
        """Charge running calls all that they have received, before something reads it."""
        self._decoding.bring_up(now)

    def _service_s(self, cost_s: float, prefilled: int, decoded: int) -> float:
        """Return what a step charges a call that had these tokens in it."""
        config = self.machine.config
        return cost_s if config.service == "measured" else config.nominal_service_s(prefilled, decoded)

    def _charge_left(self, tokens: StepTokens, cost_s: float, now: float) -> StepTokens:
        """Charge a step to the calls that have left during it; return its tokens without theirs.

        A later request may have the id of one that has left.
        """
        prefilled, decoded = dict(tokens.prefilled), dict(tokens.decoded)
        for request_id in self._left.keys() & (prefilled.keys() | decoded.keys()):
            left = self._left[request_id]
            added_s = self._service_s(cost_s, prefilled.pop(request_id, 0), decoded.pop(request_id, 0))
            arrival, report = left.identity.arrival, left.report
            self.machine.charge_left(report, arrival.tenant, added_s, now)
            left.report = replace(
                report, service_s=report.service_s + added_s, engine_steps=report.engine_steps + 1
            )
            left.steps -= 1
            if not left.steps:
                self._settle(request_id)
        return StepTokens(prefilled=prefilled, decoded=decoded)

    def settle_left(self) -> None:
        """Report the calls that have left, as no step with them is under way any more."""
        for request_id in list(self._left):
            self._settle(request_id)

    def _settle(self, request_id: str) -> None:
        left = self._left.pop(request_id)
        if not left.is_reported:
            self._send(left.identity, left.report)

    def place(self, order: Collection[Call]) -> list[str]:
        """Set the places of the calls that run next; return those whose place changed."""
        if not self._places and not order:
            return []
        old, self._places = self._places, {call.call_id: place for place, call in enumerate(order)}
        return [
            call_id for call_id in {**old, **self._places} if old.get(call_id) != self._places.get(call_id)
        ]

    def close(
        self,
        request_id: str,
        now: float,
        *,
        prompt_tokens: int,
        output_tokens: int,
        finish_reason: str,
        is_aborted: bool,
        context_tokens: int = 0,
        steps_under_way: int = 0,
    ) -> EngineReport:
        """Close a call that finished or was aborted, and send its report.

        An aborted call is reported once the steps under way with it have ended, whose time it is charged. The
        answer of a finished one waits for its report, so a step beyond its last token is charged to its
        program alone.

        Args:
            request_id: The call.
            now: The time.
            prompt_tokens: The tokens of its prompt.
            output_tokens: Those that it decoded.
            finish_reason: Why it left.
            is_aborted: Whether it was abandoned.
            context_tokens: What the prefix cache may keep of its context, for the next call of its program.
            steps_under_way: The steps under way that it is part of.

        Returns:
            The report, without these steps.
        """
        self._decoding.stop(request_id, now)
        call = self._calls.pop(request_id)
        self.running.discard(request_id)
        call.runs.stop(now)
        self._places.pop(request_id, None)
        # A call without a start has not prefilled anything.
        cached_tokens = prompt_tokens if call.cached_tokens is None else call.cached_tokens
        work = work_of(max(0, prompt_tokens - cached_tokens), output_tokens)
        if is_aborted:
            record = self.machine.abort(request_id, now, work=work)
        else:
            record = self.machine.finish(request_id, now, work=work, context_tokens=context_tokens)
        if call.identity.is_last or call.identity.program_id == request_id:
            self._end(call.identity.program_id, now)
        elif not self._needs_contexts:
            self._drop_program(call.identity.arrival, now)
        report = EngineReport(
            **asdict(record) | {"call_id": call.identity.call_id},
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=call.cached_tokens or 0,
            arrival_step=call.arrival_step,
            finish_step=self.step,
            engine_steps=call.engine_steps,
            finish_reason=finish_reason,
            dropped_records=self.reports.dropped_records if self.reports else 0,
            runs=tuple(call.runs.ended),
            prefilled_s=call.runs.prefilled_s,
        )
        is_reported = not (steps_under_way and is_aborted)
        if request_id in self._left:
            # Another one has had its id.
            self._settle(request_id)
        if steps_under_way:
            self._left[request_id] = _Left(
                identity=call.identity, report=report, steps=steps_under_way, is_reported=is_reported
            )
        if is_reported:
            self._send(call.identity, report)
        return report

    def _send(self, identity: CallIdentity, report: EngineReport) -> None:
        if self.is_reporting and self.reports is not None:
            self.reports.send(identity.gateway, report)

    def _drop_program(self, arrival: Arrival, now: float) -> None:
        """Drop a program without a call whose totals are kept elsewhere; boost and admission need it here."""
        program = self.machine.table.get(arrival.program_id)
        if arrival.inherited_s is not None and program is not None and not program.active_calls:
            self._end(arrival.program_id, now)

    def _end(self, program_id: str, now: float) -> None:
        self.machine.end_program(program_id, now)
        if program_id not in self.machine.table:
            self._contexts.end(program_id)

    def _expire(self, now: float) -> None:
        for share in _IDLE_SHARES:
            self.machine.expire(now, share * PROGRAM_IDLE_S)
            if len(self.machine.table) <= MAX_PROGRAMS:
                break
