"""The order of vLLM's requests: its waiting queues under our priorities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue
from autellix_backend.vllm_plugin.ranks import Rank

# vLLM 0.32 and 0.33 name their waiting queues differently; those that exist are ours to order.
_QUEUE_NAMES = ("waiting", "skipped_waiting", "kv_holding_waiting")
# A rank of ours has fewer bits; the client's priority is above it.
_RANK_BITS = 160


class RequestOrder:
    """The waiting queues of one scheduler, and the priorities of its requests."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._rank_of: Callable[[str], Rank | None] = lambda _: None
        self._queues: list[RankedRequestQueue] = []
        self._holding_queues: list[RankedRequestQueue] = []
        self.has_priorities = scheduler.policy == SchedulingPolicy.PRIORITY
        """Whether the operator asked for vLLM's priority policy: then our order is inside each priority."""

    def take_over(
        self, rank_of: Callable[[str], Rank | None], is_held_back: Callable[[str], bool], *, is_ordering: bool
    ) -> None:
        """Order the waiting queues by our ranks.

        Args:
            rank_of: Returns the rank of a request, by its id; None where that is its priority already.
            is_held_back: Whether a request, by its id, waits for its admission.
            is_ordering: Whether vLLM picks its own victims by our ranks too.
        """
        self._rank_of = rank_of
        if is_ordering:
            self._scheduler.policy = SchedulingPolicy.PRIORITY
        for name in _QUEUE_NAMES:
            queue = getattr(self._scheduler, name, None)
            if isinstance(queue, RequestQueue):
                ranked = RankedRequestQueue(
                    queue,
                    lambda request: is_held_back(request.request_id),
                    self.rank,
                    self._scheduler.deferred_waiting,
                )
                setattr(self._scheduler, name, ranked)
                self._queues.append(ranked)
                if name != _QUEUE_NAMES[0]:
                    self._holding_queues.append(ranked)

    def let_go(self) -> None:
        """Give all requests the order of their arrival, and hold none back."""
        if not self._queues:
            return
        for place, request in enumerate(self._scheduler.requests.values()):
            request.priority = (_given_priority(request) << _RANK_BITS) + place
        for queue in self._queues:
            queue.release()

    def offer(self, requests: Sequence[Request] | None) -> None:
        """Let vLLM see these waiting requests alone; with None, all again."""
        for queue in self._queues:
            queue.offer(requests)

    @property
    def has_better_waiting(self) -> bool:
        """Whether a waiting request precedes a running one: cheap enough to ask in every step."""
        heads = [self.rank(queue.peek_request()).number for queue in self._queues if queue]
        running = self._scheduler.running
        return bool(heads and running) and min(heads) < max(map(attrgetter("priority"), running))

    def loading(self) -> list[str]:
        """Return the waiting requests whose KV blocks are allocated already."""
        if getattr(self._scheduler, "connector", None) is None:
            return []
        return [
            request.request_id
            for queue in self._holding_queues
            for request in queue
            if request.num_computed_tokens or request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        ]

    # Ranks.

    def enter(self, request: Request, rank: int) -> None:
        """Give a new request its first rank; its own priority counts where the operator wants that."""
        given = int(request.priority) if self.has_priorities else 0
        request.priority = (given << _RANK_BITS) + rank

    def rank(self, request: Request) -> Rank:
        """Return the present rank of a request that has entered, among those of its priority."""
        rank = self._rank_of(request.request_id)
        if rank is None:
            return Rank(request.priority)
        return rank._replace(own=rank.own + (_given_priority(request) << _RANK_BITS))

    def rerank(self, request: Request) -> None:
        """Give a request the priority of its present rank; that of a running one must always be.

        vLLM picks its own victims by it. Those that wait are ordered by their ranks.
        """
        request.priority = self.rank(request).number

    def rerank_running(self, request_ids: Iterable[str]) -> None:
        """Give requests that run the priorities of their present ranks."""
        for request_id in request_ids:
            self.rerank(self._scheduler.requests[request_id])

    def given_priority(self, request_id: str) -> int:
        """Return the priority that a request came with, 0 where it does not count; smaller goes first."""
        return _given_priority(self._scheduler.requests[request_id])

    def reposition(self, request_id: str) -> None:
        """Give a request, and the waiting ones that move with it, the place of its present rank."""
        request = self._scheduler.requests[request_id]
        self.rerank(request)
        rank = self.rank(request)
        for queue in self._queues:
            if request in queue:
                queue.move_request(request)
            if rank.group is not None:
                queue.move_group(rank.group, rank.base)

    # Pauses.

    def begun(self) -> list[Request]:
        """Return the waiting requests that have lost their slots, but for those that `finish_first` has."""
        return [r for r in self._scheduler.waiting if r.status == RequestStatus.PREEMPTED]

    def finish_first(self, request: Request) -> None:
        """Let vLLM resume a preempted request while it drains: it takes only those that hold KV blocks."""
        self._scheduler.waiting.remove_request(request)
        self._scheduler.kv_holding_waiting.add_request(request)

    def end_drain(self) -> None:
        """Put what `finish_first` moved and vLLM did not resume back to the other waiting requests."""
        holding = self._scheduler.kv_holding_waiting
        for request in list(holding):
            if request.status == RequestStatus.PREEMPTED and not request.num_computed_tokens:
                holding.remove_request(request)
                self._scheduler.waiting.add_request(request)


def _given_priority(request: Request) -> int:
    # A rank may be a little below zero.
    return int(request.priority + (1 << (_RANK_BITS - 1))) >> _RANK_BITS
