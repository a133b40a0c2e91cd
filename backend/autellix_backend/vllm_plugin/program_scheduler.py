"""Our scheduler for stock vLLM, which `scheduler.AutellixScheduler` makes.

A mixin over vLLM's scheduler, async or not. vLLM's `schedule()` runs unchanged; before it, the waiting queues
are put in the machine's order, and running requests outside the machine's batch are preempted. The hooks are
here, the choice of requests in `decisions.py`, all access to vLLM's state in `engine_state.py`.

Rules that keep outputs equal to a run without preemption:

- vLLM leaves a preempted request with output in flight ("stale") alone until that output has drained, so it
  is not admissible here either;
- a request whose last token is in flight is about to leave by itself and is never preempted;
- the model runner learns a resumed request's tokens only if it was absent from the previous step, so a
  preempted request is dropped from `prev_step_scheduled_req_ids`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from msgspec.structs import replace
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from autellix_backend.reports.link import EngineFacts
from autellix_backend.settings import report_secret
from autellix_backend.vllm_plugin.compatibility import why_incompatible
from autellix_backend.vllm_plugin.decisions import StepDecisions
from autellix_backend.vllm_plugin.engine_state import SchedulerState, cached_tokens_of
from autellix_backend.vllm_plugin.facts import facts_of
from autellix_backend.vllm_plugin.host_tier import HostTier
from autellix_backend.vllm_plugin.identity import read_identity
from autellix_backend.vllm_plugin.preemption import PreemptionPrices
from autellix_backend.vllm_plugin.report_server import port_of_rank
from autellix_backend.vllm_plugin.settings import PluginSettings
from autellix_backend.vllm_plugin.snapshots import SnapshotReporter, load_of
from autellix_backend.vllm_plugin.steps import StepTimes
from autellix_backend.vllm_plugin.tracker import UNRANKED, CallTracker

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")

_ABORTED = (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)

P = ParamSpec("P")
T = TypeVar("T")

# For the type checker the mixin has vLLM's scheduler below it, which it gets by being mixed in.
if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as _Host
else:
    _Host = object


class ProgramSchedulerMixin(_Host):
    """Program-aware order and preemption on top of the vLLM scheduler that it is mixed into."""

    clock: Callable[[], float] = staticmethod(time.monotonic)
    """The source of time; a test may set another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = PluginSettings.from_additional_config(self.vllm_config.additional_config)
        self.is_degraded = False
        self._is_in_charge = False
        """Whether vLLM's queues are ours to order, or requests ours to hold back."""
        problem = why_incompatible(self)
        if problem is None:
            self._guard(self._set_up, settings)
        else:
            self.is_degraded = True
            logger.warning("Autellix: %s; this engine goes on in vLLM's own order", problem)
        if settings.report_address is not None and not self.is_degraded:
            address = port_of_rank(settings.report_address, self._facts.rank)
            self.tracker.sender.listen(address, report_secret(), self.facts)

    def _set_up(self, settings: PluginSettings) -> None:
        self._engine = SchedulerState(self)
        if self._engine.order.has_priorities:
            # Admission would hold back urgent requests behind others.
            scheduler = dataclasses.replace(settings.scheduler, admission="none")
            settings = replace(settings, scheduler=scheduler)
            logger.info(
                "Autellix: requests go by their priority (--scheduling-policy priority), and within one by "
                "policy %s, without admission",
                scheduler.policy,
            )
        kv_tokens = self._engine.blocks.capacity_tokens
        self.tracker = CallTracker(settings, kv_tokens, self._engine.blocks.hash_block_tokens)
        machine = self.tracker.machine
        self._facts = facts_of(self.vllm_config, machine, kv_tokens, self._engine.rank)
        connector = getattr(self, "connector", None)
        self.prices = PreemptionPrices(connector, machine, self.block_size)
        self.host_tier = HostTier(connector, self._engine, self.tracker)
        self.decisions = StepDecisions(self._engine, self.tracker, self.prices, self.host_tier)
        self._reporter = SnapshotReporter(self.tracker, self._engine.rank)
        self._steps = StepTimes()
        self._arrivals = 0
        is_ordering = machine.policy.reorders
        if is_ordering or machine.admission.memory is not None:
            self._is_in_charge = True
            self._engine.order.take_over(self.tracker.is_held_back, is_ordering=is_ordering)
            self._engine.blocks.watch()

    def facts(self) -> EngineFacts:
        """Return what gateways learn of this engine; may be called in another thread."""
        dropped = self.tracker.sender.dropped_records
        return replace(self._facts, is_degraded=self.is_degraded, dropped=dropped)

    # vLLM's hooks, in the order in which a request meets them.

    def add_request(self, request: Request) -> None:
        """Rank a request, then let vLLM queue it."""
        is_new = request.request_id not in self.requests
        if is_new:
            if self._is_in_charge:
                self._arrivals += 1
                self._engine.order.enter(request, UNRANKED + self._arrivals)
            self._guard(self._arrive, request)
        super().add_request(request)
        if is_new:
            self._guard(self._queued, request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Preempt the requests that must make room, and let vLLM fill the step."""
        started_s = self.clock()
        is_throttled = any(args) or any(kwargs.values())
        with ExitStack() as loading:
            if self._is_in_charge and not is_throttled:
                self._guard(self._make_room, started_s)
                self._guard(self._load_ahead, loading)
            output = super().schedule(*args, **kwargs)
            self._guard(loading.close)
        self._guard(self._on_scheduled, output, started_s)
        self._guard(self._drain)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Charge the executed step to its calls, then let vLLM process the tokens."""
        self._guard(self._charge, scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guard(self._report)
        return outputs

    def set_pause_state(self, pause_state: Any) -> None:
        """Pause or resume. vLLM drains what runs; the requests that we preempted count as running, too."""
        super().set_pause_state(pause_state)
        self._guard(self._drain)
        self._guard(self._end_drain)

    def shutdown(self) -> None:
        """Stop reporting, and let vLLM end its own."""
        if hasattr(self, "tracker"):
            self.tracker.sender.close()
        super().shutdown()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # Ours and vLLM's own preemptions both pass here.
        self._guard(self._on_preempted, request)
        super()._preempt_request(request, *args, **kwargs)
        self._guard(self._after_preemption, request)

    def _handle_stopped_request(self, request: Request) -> bool:
        # A streaming-input session that waits for its next part gives its slot back without a preemption.
        if request.resumable:
            self._guard(self._on_paused, request)
        return bool(super()._handle_stopped_request(request))

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._guard(self._close, request)
        freed = super()._free_request(request, *args, **kwargs)
        self._guard(self._report_last)
        return freed

    # What the hooks do.

    def _arrive(self, request: Request) -> None:
        extra_args = getattr(request.sampling_params, "extra_args", None)
        identity = read_identity(request.request_id, extra_args, getattr(request, "session_id", None))
        self.tracker.arrive(
            request.request_id,
            identity,
            self.clock(),
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            block_hashes=request.block_hashes,
        )
        self._rank(request)

    def _queued(self, request: Request) -> None:
        self.host_tier.on_reviewed((request.request_id,))

    def _make_room(self, now: float) -> None:
        for victim in self._decide(now):
            self._engine.preempt(victim, self.clock())

    def _decide(self, now: float) -> list[Request]:
        return self.decisions.decide(now)

    def _load_ahead(self, loading: ExitStack) -> None:
        loading.enter_context(self.host_tier.loading_ahead(self.host_tier.to_load()))

    def _on_scheduled(self, output: SchedulerOutput, started_s: float) -> None:
        if not output.num_scheduled_tokens:
            return
        self._steps.start(output, started_s)
        now = self.clock()
        for request_id in output.num_scheduled_tokens:
            if request_id in self.tracker and not self.tracker.is_running(request_id):
                request = self.requests[request_id]
                self.tracker.start(request_id, now, cached_tokens_of(request))
                # A policy that holds slots ranks a running call differently.
                self._rank(request)
        is_budget_spent = output.total_num_scheduled_tokens >= self.max_num_scheduled_tokens
        self.decisions.on_scheduled(is_budget_spent=is_budget_spent)

    def _charge(self, output: SchedulerOutput) -> None:
        if not output.num_scheduled_tokens:
            return
        now = self.clock()
        cost_s = self._steps.end(output, now)
        self.tracker.charge(output.num_scheduled_tokens, cost_s, now)
        self.prices.observe_step(output.num_scheduled_tokens, cost_s)
        self._reporter.observe_step(cost_s)

    def _on_preempted(self, request: Request) -> None:
        if request.request_id in self.tracker and self.tracker.is_running(request.request_id):
            self.tracker.preempt(request.request_id, self.clock())
            self._rank(request)

    def _after_preemption(self, request: Request) -> None:
        self.prices.on_preempted(request.request_id)

    def _drain(self) -> None:
        """While vLLM drains, let it finish the requests that it, or we, have preempted."""
        if self._is_in_charge and self._engine.is_draining:
            for request in self._engine.order.begun():
                self.tracker.readmit(request.request_id, self.clock())
                self._rank(request)
                self._engine.order.finish_first(request)

    def _end_drain(self) -> None:
        if self._is_in_charge and not self._engine.is_draining:
            self._engine.order.end_drain()

    def _on_paused(self, request: Request) -> None:
        if request.request_id in self.tracker:
            self.tracker.pin(request.request_id)
        self._on_preempted(request)

    def _close(self, request: Request) -> None:
        if request.request_id in self.tracker:
            self.decisions.forget(request.request_id)
            reason = request.get_finished_reason()
            self.tracker.close(
                request.request_id,
                self.clock(),
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                finish_reason=str(reason) if reason is not None else "unknown",
                is_aborted=request.status in _ABORTED,
                context_tokens=request.num_tokens if self._engine.blocks.is_caching else 0,
            )

    def _report_last(self) -> None:
        if not len(self.tracker):
            # No further step may follow to report it.
            self._report()

    def _report(self) -> None:
        if self._reporter.is_due(self.clock):
            blocks = self._engine.blocks
            load = load_of(self, self.tracker, self._engine.free_slots, is_block_short=blocks.is_short)
            self._reporter.send(self.clock, load, blocks.held)

    def _rank(self, request: Request) -> None:
        if self._is_in_charge:
            self._engine.order.rerank(request, self.tracker.priority(request.request_id))

    def _guard(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run our part of a hook; if it fails, log it once and leave the engine to vLLM alone."""
        if self.is_degraded:
            return None
        try:
            return action(*args, **kwargs)
        except Exception:  # The engine's loop is not ours: a fault here must not take every request down.
            self.is_degraded = True
            logger.exception("Autellix scheduling failed; this engine goes on in order of arrival")
            if self._is_in_charge:
                self._engine.order.let_go()
            return None


class AsyncProgramScheduler(ProgramSchedulerMixin, AsyncScheduler):
    """Program-aware scheduling with async scheduling on."""


class SyncProgramScheduler(ProgramSchedulerMixin, Scheduler):
    """Program-aware scheduling with async scheduling off."""
