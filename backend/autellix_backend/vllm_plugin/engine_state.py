"""The state of vLLM's scheduler beyond its public methods: every private name of vLLM's is used here."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue
from autellix_backend.vllm_plugin.request_facts import is_last_token_in_flight
from autellix_backend.vllm_plugin.shortage import BlockShortage, keeps_contexts, watch_allocations

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

__all__ = ["SchedulerState"]

# vLLM 0.32 and 0.33 name their waiting queues differently; those that exist are ours to order.
_QUEUE_NAMES = ("waiting", "skipped_waiting", "kv_holding_waiting")
_READY_STATUSES = (RequestStatus.WAITING, RequestStatus.PREEMPTED)

_priority = attrgetter("priority")


class SchedulerState:
    """Questions about the requests, slots and blocks of one scheduler, and the changes that we make to it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self._shortage = BlockShortage()
        self._queues: list[RankedRequestQueue] = []

    # Requests.

    @property
    def running(self) -> list[Request]:
        """The running requests."""
        return self._scheduler.running  # type: ignore[no-any-return]

    def find(self, request_id: str) -> Request | None:
        """Return a request, None if it has left."""
        return self._scheduler.requests.get(request_id)

    def worst_first(self, requests: Iterable[Request]) -> list[Request]:
        """Sort requests by priority, the last to run first."""
        return sorted(requests, key=_priority, reverse=True)

    def is_ready(self, request: Request) -> bool:
        """Whether vLLM would admit a waiting request, as far as that can be seen from outside."""
        has_stale = bool(request.num_stale_output_tokens) and not request.drop_stale_output
        # vLLM looks at the status of a request whose load is over only when it has a slot for it.
        is_loaded = request.request_id in self._scheduler.finished_recving_kv_req_ids
        return (request.status in _READY_STATUSES or is_loaded) and not has_stale

    def is_preemptible(self, request: Request) -> bool:
        """Whether a request runs and is not about to leave by itself."""
        is_running = request.status == RequestStatus.RUNNING
        return is_running and not is_last_token_in_flight(request, self._scheduler.max_model_len)

    # Slots and order.

    @property
    def is_paused(self) -> bool:
        """Whether vLLM admits nothing at present."""
        return bool(getattr(self._scheduler, "pause_state", PauseState.UNPAUSED) != PauseState.UNPAUSED)

    @property
    def free_slots(self) -> int:
        """The slots that vLLM may fill."""
        scheduler = self._scheduler
        limit = min(
            scheduler.max_num_running_reqs,
            getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs),
        )
        # Paused streaming sessions keep a slot of the model runner.
        paused = getattr(scheduler, "num_waiting_for_streaming_input", 0)
        return int(limit) - len(scheduler.running) - int(paused)

    @property
    def has_better_waiting(self) -> bool:
        """Whether a waiting request precedes a running one: cheap enough to ask in every step."""
        heads = [queue.peek_request().priority for queue in self._queues if queue]
        return bool(heads and self.running) and min(heads) < max(map(_priority, self.running))

    def take_over(self) -> None:
        """Order the waiting queues by our priority, let vLLM pick its own victims by it, watch its blocks."""
        scheduler = self._scheduler
        scheduler.policy = SchedulingPolicy.PRIORITY
        for name in _QUEUE_NAMES:
            queue = getattr(scheduler, name, None)
            if isinstance(queue, RequestQueue):
                ranked = RankedRequestQueue(queue)
                setattr(scheduler, name, ranked)
                self._queues.append(ranked)
        watch_allocations(scheduler.kv_cache_manager, self._shortage)

    def reposition(self, request_id: str, priority: int) -> None:
        """Give a request another priority, and its place in the waiting queues."""
        request = self._scheduler.requests[request_id]
        request.priority = priority
        for queue in self._queues:
            if request in queue:
                queue.move_request(request)

    def preempt(self, request: Request, now: float) -> None:
        """Preempt a running request outside vLLM's own loop, as `reset_prefix_cache` does."""
        scheduler = self._scheduler
        scheduler.running.remove(request)
        mode = {"drop_stale_output": True} if getattr(scheduler, "requires_kv_delivery", False) else {}
        scheduler._preempt_request(request, now, **mode)
        # The model runner learns a resumed request's tokens only if the previous step did not have it.
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    # KV blocks.

    @property
    def is_short_of_blocks(self) -> bool:
        """Whether a waiting request was refused KV blocks in the latest step."""
        return self._shortage.is_pending

    def take_refused(self) -> Request | None:
        """Return once the request that was refused KV blocks."""
        return self._shortage.take()

    def missing_blocks(self) -> int:
        """Estimate how many KV blocks the last refused request lacks."""
        return self._shortage.missing_blocks(self._scheduler.kv_cache_manager)

    def held_blocks(self, request_id: str) -> int:
        """Return the number of KV blocks of a running request."""
        return sum(map(len, self._scheduler.kv_cache_manager.get_block_ids(request_id)))

    def can_free_blocks(self, request: Request) -> bool:
        """Whether a preemption frees the blocks of a request at once."""
        return bool(self._scheduler._request_blocks_can_be_freed(request))

    def keeps_contexts(self) -> bool:
        """Whether the prefix cache keeps the contexts of all requests, running and waiting."""
        scheduler = self._scheduler
        waiting = (r for r in scheduler.requests.values() if r.status != RequestStatus.RUNNING)
        return keeps_contexts(scheduler.kv_cache_manager, waiting)
