"""The scheduler class for stock vLLM: `--scheduler-cls` with the dotted path of `AutellixScheduler`.

A mixin over vLLM's scheduler, async or not. vLLM's `schedule()` runs unchanged; before it, the waiting
queues are put in the machine's order and running calls that the machine would not choose are preempted with
vLLM's own `_preempt_request`, as `reset_prefix_cache` does. All decisions are `core.machine`'s.

Rules that keep outputs equal to a run without preemption:

- a preempted request with output in flight ("stale") is left alone by vLLM until that output has drained,
  so it is not admissible here either;
- a request whose last token is in flight is about to leave by itself and is never a victim;
- the model runner learns a resumed request's tokens only if it was absent from the previous step, so a
  victim is dropped from `prev_step_scheduled_req_ids`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.call import Call
from autellix_backend.vllm_plugin.identity import read_identity
from autellix_backend.vllm_plugin.preemption import InterruptionPrices
from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue
from autellix_backend.vllm_plugin.request_facts import cached_tokens_of, is_last_token_in_flight, usage_of
from autellix_backend.vllm_plugin.settings import PluginSettings
from autellix_backend.vllm_plugin.shortage import BlockShortage, keeps_contexts, watch_allocations
from autellix_backend.vllm_plugin.snapshots import SnapshotReporter, load_of
from autellix_backend.vllm_plugin.tracker import UNRANKED, CallTracker

__all__ = ["AsyncProgramScheduler", "AutellixScheduler", "ProgramSchedulerMixin", "SyncProgramScheduler"]

logger = logging.getLogger(__name__)

# vLLM 0.32 and 0.33 name their waiting queues differently; those that exist are ours to order.
_QUEUE_NAMES = ("waiting", "skipped_waiting", "kv_holding_waiting")
_READY_STATUSES = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
# vLLM may skip a request for reasons of its own (LoRA slots, a connector): a slot made free for it and not
# taken is not made free again for this many steps.
_COOLING_STEPS = 16

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
    """Where the time comes from; a test may set another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = PluginSettings.from_additional_config(self.vllm_config.additional_config)
        self.tracker = CallTracker(settings)
        self._reporter = SnapshotReporter(self.tracker)
        self.is_degraded = False
        self.slot_preemptions = 0
        self.block_preemptions = 0
        self._is_ordering = self.tracker.machine.policy.reorders
        self._preemption = settings.scheduler.preemption
        self._period_steps = settings.scheduler.period_steps
        self._decision_step = 0
        self._arrivals = 0
        self._steps: deque[tuple[SchedulerOutput, float]] = deque()
        self._last_step_end_s = 0.0
        self._beneficiaries: list[str] = []
        self._cooling: dict[str, int] = {}
        self._shortage = BlockShortage()
        self.prices = InterruptionPrices(
            getattr(self, "connector", None), self.tracker.machine, self.block_size
        )
        self._queues: list[RankedRequestQueue] = []
        if self._is_ordering:
            self._take_over_queues()
            watch_allocations(self.kv_cache_manager, self._shortage)

    # vLLM's hooks, in the order in which a request meets them.

    def add_request(self, request: Request) -> None:
        """Rank a request, then let vLLM queue it."""
        if request.request_id not in self.requests:
            self._arrivals += 1
            if self._is_ordering:
                request.priority = UNRANKED + self._arrivals
            self._guard(self._arrive, request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Decide who should run, make room for them, and let vLLM fill the step."""
        started_s = self.clock()
        is_throttled = any(args) or any(kwargs.values())
        if self._is_ordering and not is_throttled:
            for victim in self._guard(self._decide, started_s) or ():
                self._evict(victim)
        output = super().schedule(*args, **kwargs)
        self._guard(self._note_started, output, started_s)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Charge the executed step to its calls, then let vLLM take in the tokens."""
        self._guard(self._charge, scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guard(self._report)
        return outputs

    def shutdown(self) -> None:
        """Close the accounting socket with the scheduler."""
        self.tracker.sender.close()
        super().shutdown()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # Ours and vLLM's own preemptions both pass here.
        self._guard(self._stop, request)
        super()._preempt_request(request, *args, **kwargs)
        self.prices.note_preempted(request.request_id)

    def _handle_stopped_request(self, request: Request) -> bool:
        # A streaming-input session that waits for its next part gives its slot back without a preemption.
        if request.resumable:
            self._guard(self._stop, request)
        return bool(super()._handle_stopped_request(request))

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._guard(self._close, request)
        freed = super()._free_request(request, *args, **kwargs)
        if not len(self.tracker):
            # No step may follow in which to tell it.
            self._guard(self._report)
        return freed

    # Bookkeeping: translate vLLM's objects for the tracker.

    def _arrive(self, request: Request) -> None:
        extra_args = getattr(request.sampling_params, "extra_args", None)
        identity = read_identity(request.request_id, extra_args, getattr(request, "session_id", None))
        self.tracker.arrive(
            request.request_id,
            identity,
            self.clock(),
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
        )
        self._rank(request)

    def _note_started(self, output: SchedulerOutput, started_s: float) -> None:
        if not output.num_scheduled_tokens:
            return
        self._steps.append((output, started_s))
        now = self.clock()
        for request_id in output.num_scheduled_tokens:
            if request_id in self.tracker and not self.tracker.is_running(request_id):
                request = self.requests[request_id]
                self.tracker.start(request_id, now, cached_tokens_of(request))
                # Under a policy that holds slots, a call's place is another once it runs.
                self._rank(request)
        is_budget_spent = output.total_num_scheduled_tokens >= self.max_num_scheduled_tokens
        self._cool_down(is_cut_short=is_budget_spent or self._shortage.is_pending)

    def _charge(self, output: SchedulerOutput) -> None:
        if not output.num_scheduled_tokens:
            return
        now = self.clock()
        started_s = self._step_start(output, now)
        # Pipelined steps overlap: a step is charged from where the previous one ended.
        cost_s = now - max(started_s, self._last_step_end_s)
        self._last_step_end_s = now
        self.tracker.charge(output.num_scheduled_tokens, cost_s, now)
        self.prices.observe_step(output.num_scheduled_tokens, cost_s)
        self._reporter.note_step(cost_s)

    def _step_start(self, output: SchedulerOutput, default_s: float) -> float:
        while self._steps:
            scheduled, started_s = self._steps.popleft()
            if scheduled is output:
                return started_s
        return default_s

    def _stop(self, request: Request) -> None:
        if request.request_id in self.tracker and self.tracker.is_running(request.request_id):
            self.tracker.preempt(request.request_id, self.clock())
            self._rank(request)

    def _close(self, request: Request) -> None:
        if request.request_id not in self.tracker:
            return
        self._cooling.pop(request.request_id, None)
        self.tracker.close(request.request_id, self.clock(), usage_of(request))

    def _report(self) -> None:
        if self._reporter.is_due(self.clock):
            load = load_of(self, self.tracker, self._free_slots(), is_block_short=self._shortage.is_pending)
            self._reporter.send(self.clock, load, self._held_blocks)

    def _rank(self, request: Request) -> None:
        if self._is_ordering:
            request.priority = self.tracker.priority(request.request_id)

    # Decisions.

    def _decide(self, now: float) -> list[Request]:
        """Bring the order up to date and return the running requests that must make room."""
        step = self._decision_step
        self._decision_step += 1
        if step % self._period_steps:
            return []
        for request_id in self.tracker.tick(now):
            self._reposition(self.requests[request_id])
        if getattr(self, "pause_state", PauseState.UNPAUSED) != PauseState.UNPAUSED:
            return []
        refused = self._shortage.take()
        free = self._free_slots()
        self._place_tenants(len(self.running) + free)
        if self._preemption == "never":
            return []
        if refused is not None and free > 0:
            return self._block_victims(refused, now)
        return self._slot_victims(free, now)

    def _place_tenants(self, slots: int) -> None:
        """Where several tenants share the engine, put the calls that are next to run in front of all others.

        vLLM orders its queues by one number per request, and what orders tenants moves with every step.
        """
        machine = self.tracker.machine
        # Slots that fall free between two decisions are filled by the same order.
        depth = slots if self._period_steps == 1 else 2 * slots
        order = machine.batch(depth, admissible=self._is_admissible) if machine.shares.is_shared else ()
        for request_id in self.tracker.place(order):
            self._reposition(self.requests[request_id])

    def _slot_victims(self, free: int, now: float) -> list[Request]:
        """Return the running requests that the machine's batch replaces, worst first."""
        if not self._has_better_waiting():
            return []
        slots = len(self.running) + free
        batch = self.tracker.machine.batch(slots, admissible=self._is_admissible)
        chosen = dict.fromkeys(call.call_id for call in batch)
        running = {request.request_id for request in self.running}
        gaining = [call_id for call_id in chosen if call_id not in running]
        losing = [r for r in self.running if r.request_id not in chosen and self._is_evictable(r)]
        losing.sort(key=_priority, reverse=True)
        worst = losing[: max(0, len(gaining) - max(0, free))]
        is_free = not worst or self._is_free()
        victims = [request for request in worst if is_free or self._is_worth(request, now)]
        self.slot_preemptions += len(victims)
        # Who is kept out by the price of others' slots has not been passed over by vLLM.
        self._beneficiaries = gaining[: max(0, free) + len(victims)] if victims else []
        return victims

    def _block_victims(self, refused: Request | None, now: float) -> list[Request]:
        """Return the worst running requests whose KV blocks let the refused request in, if they suffice."""
        if refused is None or not self._is_ready(refused):
            return []
        missing = self._shortage.missing_blocks(self.kv_cache_manager)
        is_free = self._is_free()
        victims: list[Request] = []
        for request in sorted(self.running, key=_priority, reverse=True):
            if missing <= 0 and victims:
                break
            if request.priority <= refused.priority:
                break
            can_go = self._is_evictable(request) and self._request_blocks_can_be_freed(request)
            if can_go and (is_free or self._is_worth(request, now)):
                victims.append(request)
                missing -= self._held_blocks(request.request_id)
        # Too little to help: preempting would only make both wait.
        if missing > 0:
            return []
        self.block_preemptions += len(victims)
        return victims

    def _is_free(self) -> bool:
        """Say whether interruptions cost nothing at present, or nobody asks for their price."""
        waiting = (r for r in self.requests.values() if r.status != RequestStatus.RUNNING)
        return self._preemption == "always" or keeps_contexts(self.kv_cache_manager, waiting)

    def _is_worth(self, request: Request, now: float) -> bool:
        return self.prices.is_worth(request, now, running=len(self.running))

    def _evict(self, request: Request) -> None:
        """Preempt a running request outside vLLM's own loop."""
        self.running.remove(request)
        mode = {"drop_stale_output": True} if getattr(self, "requires_kv_delivery", False) else {}
        self._preempt_request(request, self.clock(), **mode)
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _cool_down(self, *, is_cut_short: bool) -> None:
        # Who was kept out by the token budget gets in with the next step, and for want of blocks others go.
        for request_id in self._beneficiaries if not is_cut_short else ():
            request = self.requests.get(request_id)
            if request is not None and request.status != RequestStatus.RUNNING:
                self._cooling[request_id] = self._decision_step + _COOLING_STEPS
        self._beneficiaries = []

    # Questions about requests.

    def _free_slots(self) -> int:
        limit = min(
            self.max_num_running_reqs, getattr(self, "max_num_active_reqs", self.max_num_running_reqs)
        )
        # Paused streaming sessions keep a slot of the model runner.
        return int(limit) - len(self.running) - int(getattr(self, "num_waiting_for_streaming_input", 0))

    def _has_better_waiting(self) -> bool:
        """Whether a preemption is possible at all: cheap enough to ask in every step."""
        heads = [queue.peek_request().priority for queue in self._queues if queue]
        return bool(heads and self.running) and min(heads) < max(map(_priority, self.running))

    def _is_admissible(self, call: Call) -> bool:
        request = self.requests.get(call.call_id)
        if request is None:
            return False
        if request.status == RequestStatus.RUNNING:
            return True
        return self._is_ready(request) and self._cooling.get(call.call_id, 0) <= self._decision_step

    def _is_ready(self, request: Request) -> bool:
        """Whether vLLM would let a waiting request in now, as far as one can tell from outside."""
        has_stale = bool(request.num_stale_output_tokens) and not request.drop_stale_output
        # vLLM looks at the status of one whose load is over only when it has a slot for it.
        is_loaded = request.request_id in self.finished_recving_kv_req_ids
        return (request.status in _READY_STATUSES or is_loaded) and not has_stale

    def _is_evictable(self, request: Request) -> bool:
        is_running = request.status == RequestStatus.RUNNING
        return is_running and not is_last_token_in_flight(request, self.max_model_len)

    def _held_blocks(self, request_id: str) -> int:
        return sum(map(len, self.kv_cache_manager.get_block_ids(request_id)))

    # Plumbing.

    def _take_over_queues(self) -> None:
        """Order the waiting queues by our priority, and make vLLM pick its own victims by it."""
        self.policy = SchedulingPolicy.PRIORITY
        for name in _QUEUE_NAMES:
            queue = getattr(self, name, None)
            if isinstance(queue, RequestQueue):
                ranked = RankedRequestQueue(queue)
                setattr(self, name, ranked)
                self._queues.append(ranked)

    def _reposition(self, request: Request) -> None:
        self._rank(request)
        for queue in self._queues:
            if request in queue:
                queue.move_request(request)

    def _guard(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a piece of ours; if it fails, log it once and leave the engine to vLLM alone."""
        if self.is_degraded:
            return None
        try:
            return action(*args, **kwargs)
        except Exception:  # The engine's loop is not ours: a fault here must not take every request down.
            self.is_degraded = True
            logger.exception("Autellix scheduling failed; this engine goes on in order of arrival")
            return None


_priority = attrgetter("priority")


class AsyncProgramScheduler(ProgramSchedulerMixin, AsyncScheduler):
    """Program-aware scheduling with async scheduling on."""


class SyncProgramScheduler(ProgramSchedulerMixin, Scheduler):
    """Program-aware scheduling with async scheduling off."""


class AutellixScheduler:
    """What `--scheduler-cls` names: makes the async or the sync scheduler, as the engine is configured."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the scheduler that fits the engine; it is not an instance of this class."""
        is_async = vllm_config.scheduler_config.async_scheduling
        chosen = AsyncProgramScheduler if is_async else SyncProgramScheduler
        return chosen(vllm_config, *args, **kwargs)
