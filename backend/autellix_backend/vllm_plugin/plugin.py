"""Our part of one vLLM scheduler: follows its requests, and decides about their order and preemption."""

from __future__ import annotations

import dataclasses
import logging
import math
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.preemption import has_earned
from autellix_backend.core.recording import MachineRecorder
from autellix_backend.reports.call_arguments import read_identity
from autellix_backend.reports.link import EngineFacts
from autellix_backend.vllm_plugin.compatibility import engine_rank, plugin_version, vllm_version
from autellix_backend.vllm_plugin.decisions import StepDecisions
from autellix_backend.vllm_plugin.engine_state import SchedulerState, cached_tokens_of
from autellix_backend.vllm_plugin.host_tier import HostTier
from autellix_backend.vllm_plugin.preemption import PreemptionPrices
from autellix_backend.vllm_plugin.record_file import RecordFile
from autellix_backend.vllm_plugin.settings import PluginSettings
from autellix_backend.vllm_plugin.snapshots import SnapshotReporter, load_of
from autellix_backend.vllm_plugin.steps import StepTimes, StepTokens
from autellix_backend.vllm_plugin.tracker import CallTracker

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")

_ABORTED = (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)


class SchedulerPlugin:
    """What the hooks of `program_scheduler.py` do; any method may raise."""

    def __init__(self, scheduler: Any, settings: PluginSettings, clock: Callable[[], float]) -> None:
        """Prepare for the requests of a scheduler that has none, and change nothing in it."""
        self._scheduler = scheduler
        self._clock = clock
        self.engine = SchedulerState(scheduler)
        if self.engine.order.has_priorities:
            # Admission would hold back urgent requests behind others.
            config = dataclasses.replace(settings.scheduler, admission="none")
            settings = replace(settings, scheduler=config)
            logger.info(
                "Autellix: requests go by their priority (--scheduling-policy priority), and within one by "
                "policy %s, without admission",
                config.policy,
            )
        blocks = self.engine.blocks
        kv_tokens = blocks.capacity_tokens
        engine_id, rank = secrets.token_hex(8), engine_rank(scheduler.vllm_config)
        self.record: RecordFile | None = None
        """The record of the scheduler's events, if there is to be one."""
        recorder = None
        if settings.record_dir is not None:
            self.record = RecordFile(Path(settings.record_dir) / f"{engine_id}-rank{rank}.jsonl.gz")
            about = {"autellix": plugin_version(), "vllm": vllm_version()}
            recorder = MachineRecorder(self.record.write, secrets.token_bytes(), about)
        self.tracker = CallTracker(
            settings, kv_tokens, blocks.hash_block_tokens, blocks.fill, self.engine.step_costs, recorder
        )
        machine = self.tracker.machine
        self.facts = EngineFacts(
            engine=engine_id,
            rank=rank,
            version=plugin_version(),
            vllm=vllm_version(),
            policy=machine.policy.name,
            has_admission=machine.admission.memory is not None,
            slots=int(scheduler.vllm_config.scheduler_config.max_num_seqs),
            kv_tokens=int(kv_tokens) if kv_tokens < math.inf else None,
        )
        """The facts for the gateways that connect to the engine."""
        connector = getattr(scheduler, "connector", None)
        self.prices = PreemptionPrices(connector, machine, scheduler.block_size)
        self.host_tier = HostTier(connector, self.tracker)
        self.decisions = StepDecisions(self.engine, self.tracker, self.prices, self.host_tier)
        self._reporter = SnapshotReporter(self.tracker, self.facts.rank)
        self._steps = StepTimes()
        self._session_over: str | None = None
        """The streaming session whose end vLLM is about to make."""
        self.is_in_charge = False
        """Whether vLLM's queues are ours to order, or requests ours to hold back."""
        costs = self.tracker.step_costs
        self._has_cap = costs.chunk < costs.budget
        """Whether vLLM has a cap on the tokens that one request prefills in a step."""
        self.undoing = ExitStack()
        """Undoes, once closed, what a step has changed in vLLM for its own time."""

    def take_over(self, guard: Callable[[Callable[[], None]], None]) -> None:
        """Take charge of vLLM's queues, if the policy or admission needs that.

        Args:
            guard: Calls what it gets, and catches its errors.
        """
        machine = self.tracker.machine
        if machine.policy.reorders or machine.admission.memory is not None:
            self.is_in_charge = True
            self.engine.order.take_over(
                self.tracker.rank,
                self.tracker.is_held_back,
                self.tracker.boost_of,
                partial(self.engine.blocks.watch, guard),
                is_ordering=machine.policy.reorders,
            )

    def arrive(self, request: Request) -> None:
        """Track a new request, and rank it."""
        if self.is_in_charge:
            self.engine.order.enter(request)
        extra_args = getattr(request.sampling_params, "extra_args", None)
        identity = read_identity(request.request_id, extra_args, getattr(request, "session_id", None))
        self.tracker.arrive(
            request.request_id,
            identity,
            self._clock(),
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            block_hashes=request.block_hashes,
            is_prefilled=bool((request.kv_transfer_params or {}).get("do_remote_prefill")),
        )
        self._rank(request)
        self.host_tier.on_reviewed()

    def prepare_step(self, now: float, *, is_throttled: bool) -> None:
        """Decide about a step; what this changes in vLLM for the step alone is in `undoing`."""
        self.make_room(now, is_throttled=is_throttled)
        self.put_worst_last()
        if self._has_cap:
            self.lift_cap()

    def make_room(self, now: float, *, is_throttled: bool = False) -> None:
        """Preempt the requests whose slots or blocks others should have, unless vLLM begins no prefill."""
        self.tracker.take_ends(now)
        is_holding = self.engine.holds_prefills(is_throttled=is_throttled)
        for victim in self.decisions.decide(now, is_holding=is_holding):
            self.engine.preempt(victim, self._clock())

    def put_worst_last(self) -> None:
        """If KV memory may run out in the step, sort the running requests."""
        engine = self.engine
        is_ordering = self.tracker.machine.policy.reorders and len(engine.running) > 1
        if is_ordering and engine.blocks.may_run_out():
            self.undoing.callback(engine.order.put_back)
            machine = self.tracker.machine
            self.tracker.bring_up(self._clock())
            engine.order.put_worst_last(lambda request_id: not has_earned(machine.call(request_id)))

    def lift_cap(self) -> None:
        """While all others are held back, let a request prefill without vLLM's cap."""
        if self.engine.is_alone:
            self.undoing.enter_context(self.engine.prefilling_alone())

    def on_scheduled(self, output: SchedulerOutput, started_s: float) -> None:
        """Note a scheduled step, and start the calls that got a slot in it."""
        self.engine.blocks.end_watch()
        self.decisions.on_scheduled()
        tokens = output.num_scheduled_tokens
        if tokens:
            self._steps.start(output, started_s)
            starting = tokens.keys() - self.tracker.running
            # In the order of vLLM's batch.
            for request_id in tokens if starting else ():
                if request_id in starting and request_id in self.tracker:
                    self._start(self._scheduler.requests[request_id], tokens[request_id])
        self.drain()

    def _start(self, request: Request, scheduled_tokens: int) -> None:
        """Start the call of a request that got a slot."""
        self.tracker.start(
            request.request_id,
            self._clock(),
            cached_tokens_of(request),
            kept_tokens=request.num_computed_tokens - scheduled_tokens,
            running=len(self.engine.running),
        )
        # A policy that holds slots ranks a running call differently.
        self._rank(request)

    def charge(self, output: SchedulerOutput, results: Any) -> None:
        """Charge an executed step, with the model runner's results, to its calls; `report` follows."""
        if self.tracker.reports is not None:
            self.tracker.reports.hold()
        if not output.num_scheduled_tokens:
            return
        now = self._clock()
        cost_s = self._steps.end(output, now)
        tokens = StepTokens.of(output, results)
        self.tracker.charge(tokens, cost_s, now)
        if not self._steps:
            self.tracker.settle_left()
        self._reporter.observe_step(cost_s)

    def on_preempted(self, request: Request) -> None:
        """Preempt the call of a request, by whomever."""
        self.engine.order.rest(request)
        if self.tracker.is_running(request.request_id):
            self.tracker.preempt(request.request_id, self._clock(), request.num_computed_tokens)
            self._rank(request)

    def on_part_answered(self, request: Request) -> None:
        """Pause the call of a streaming session, which gives up its slot and keeps its blocks."""
        if request.request_id in self.tracker:
            self.tracker.pause(request.request_id, self._clock())
            self._rank(request)

    def on_part_queued(self, request: Request) -> None:
        """Resume the call of a streaming session, if vLLM has the next part of it."""
        is_waiting = request.status != RequestStatus.WAITING_FOR_STREAMING_REQ and not request.is_finished()
        if is_waiting and request.request_id in self.tracker:
            self.tracker.resume(request.request_id, self._clock())

    def on_session_over(self, request: Request) -> None:
        """Note that a client has ended its streaming session: between two parts, vLLM aborts it to end it."""
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            self._session_over = request.request_id

    def drain(self) -> None:
        """While vLLM drains, let it finish the requests that it, or we, have preempted."""
        if self.is_in_charge and self.engine.is_draining:
            for request in self.engine.order.begun():
                self.tracker.machine.readmit(request.request_id, self._clock())
                self._rank(request)
                self.engine.order.finish_first(request)

    def end_drain(self) -> None:
        """Once vLLM no longer drains, undo what `drain` did to its queues."""
        if self.is_in_charge and not self.engine.is_draining:
            self.engine.order.end_drain()

    def close(self, request: Request) -> None:
        """Close the call of a request that leaves, and send its report."""
        if request.request_id in self.tracker:
            self.decisions.forget(request.request_id)
            is_over, self._session_over = request.request_id == self._session_over, None
            reason = FinishReason.STOP if is_over else request.get_finished_reason()
            self.tracker.close(
                request.request_id,
                self._clock(),
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                finish_reason=str(reason) if reason is not None else "unknown",
                is_aborted=request.status in _ABORTED and not is_over,
                context_tokens=request.num_tokens if self.engine.blocks.is_caching else 0,
                steps_under_way=self._steps.count_with(request.request_id),
            )

    def report(self) -> None:
        """Send what a step has to report, with a snapshot, if one is due."""
        self._send_snapshot()
        if self.tracker.reports is not None:
            self.tracker.reports.release()

    def report_last(self) -> None:
        """Send a snapshot of empty queues: no further step may follow to report them."""
        if not len(self.tracker):
            self._send_snapshot()

    def _send_snapshot(self) -> None:
        if self._reporter.is_due(self._clock):
            blocks, free = self.engine.blocks, self.engine.free_slots
            load = load_of(
                self._scheduler,
                self.tracker,
                free,
                block_tokens=blocks.block_tokens,
                is_block_short=blocks.is_short,
            )
            self._reporter.send(self._clock, load, blocks.held)

    def _rank(self, request: Request) -> None:
        # Only where a waiting request may take the slot of a running one, priorities are compared.
        if self.is_in_charge and self.tracker.machine.preempts:
            self.engine.order.rerank(request)
