"""The order of vLLM's requests: its waiting queues under our priorities, and its choice of victims.

vLLM's own policy is FCFS: if KV memory runs out, it preempts the last running request, which it has not yet
scheduled in that step. So before a step in which that may happen, they are sorted, the worst last. Under its
priority policy vLLM may take one that it has scheduled: its blocks then stay in the prefix cache although
nobody computes them (vLLM issue 57580).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.place import WorkClass
from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue
from autellix_backend.vllm_plugin.ranks import UNRANKED, Rank

# vLLM 0.32 and 0.33 name their waiting queues differently; those that exist are ours to order.
QUEUE_NAMES = ("waiting", "skipped_waiting", "kv_holding_waiting")
# A rank of ours has fewer bits; the client's priority is above it.
_RANK_BITS = 160


class RequestOrder:
    """The waiting queues of one scheduler, and the priorities of its requests."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._rank_of: Callable[[str], Rank | None] = lambda _: None
        self._queues: list[RankedRequestQueue] = []
        self._released: list[RankedRequestQueue] = []
        """The queues that are no longer ours to order."""
        self._holding_queues: list[RankedRequestQueue] = []
        self._is_held_back: Callable[[str], bool] = lambda _: False
        self._on_look: Callable[[], None] = lambda: None
        self._boost_of: Callable[[WorkClass | None], int] = lambda _: 0
        self._policy = scheduler.policy
        """vLLM's own."""
        self._slots: dict[str, int] = {}
        """The places of the running requests, while they are sorted."""
        self._resting: list[Request] = []
        """Requests that have just been preempted, and do not run in the step that is scheduled next."""
        self.fault: Exception | None = None
        """What a callback of a queue has raised: vLLM goes on, and the next hook raises it."""
        self.has_priorities = scheduler.policy == SchedulingPolicy.PRIORITY
        """Whether the operator asked for vLLM's priority policy: then our order is inside each priority."""

    def take_over(
        self,
        rank_of: Callable[[str], Rank | None],
        is_held_back: Callable[[str], bool],
        boost_of: Callable[[WorkClass | None], int],
        on_look: Callable[[], None],
        *,
        is_ordering: bool,
    ) -> None:
        """Order the waiting queues by our ranks.

        Args:
            rank_of: Returns the rank of a request, by its id; None where that is its priority already.
            is_held_back: Whether a request, by its id, waits for its admission.
            boost_of: Returns the present boost of a class of work, as a part of a rank's number.
            on_look: Called when vLLM looks at the first waiting request.
            is_ordering: Whether vLLM picks its own victims by our ranks too.
        """
        self._rank_of, self._is_held_back, self._boost_of = rank_of, is_held_back, boost_of
        self._on_look = on_look
        if is_ordering:
            self._scheduler.policy = SchedulingPolicy.FCFS
        for name in QUEUE_NAMES:
            queue = getattr(self._scheduler, name, None)
            if isinstance(queue, RequestQueue):
                ranked = RankedRequestQueue(
                    queue,
                    self._holds_back,
                    self._rank_or_last,
                    self._scheduler.deferred_waiting,
                    self._boost_or_none,
                    self._look,
                )
                setattr(self._scheduler, name, ranked)
                self._queues.append(ranked)
                if name != QUEUE_NAMES[0]:
                    self._holding_queues.append(ranked)

    def let_go(self) -> None:
        """Give all requests the order that vLLM would give them, and hold none back."""
        if not self._queues:
            return
        self._scheduler.policy = self._policy
        requests = list(self._scheduler.requests.values())
        for request in requests:
            request.priority = _given_priority(request)
        self._is_held_back = lambda _: False
        self._released, self._queues = self._queues, []
        for queue in self._released:
            queue.release(_by_priority if self.has_priorities else _by_arrival, requests)

    def put_worst_last(self, is_kept: Callable[[str], bool]) -> None:
        """Sort the running requests until `put_back`, so that vLLM preempts the worst first.

        Args:
            is_kept: Whether a request, by its id, should go after all others; these are in the order in which
                they got their slots.
        """
        running = self._scheduler.running
        slots = self._slots = {request.request_id: place for place, request in enumerate(running)}

        def place(request: Request) -> tuple[bool, int]:
            request_id = request.request_id
            is_last = not is_kept(request_id)
            return is_last, self.rank(request).number if is_last else slots[request_id]

        running.sort(key=place)

    def put_back(self) -> None:
        """Give the running requests the order in which they got their slots: token budget goes by it."""
        slots, self._slots = self._slots, {}
        if slots:
            self._scheduler.running.sort(key=lambda request: slots.get(request.request_id, len(slots)))

    def raise_fault(self) -> None:
        """Raise what a callback of a queue has raised, once."""
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    @property
    def has_visible(self) -> bool:
        """Whether vLLM may take a waiting request."""
        return any(map(bool, self._queues))

    @property
    def has_better_waiting(self) -> bool:
        """Whether a waiting request precedes a running one: cheap enough to ask in every step."""
        heads = [self.rank(queue.first()).number for queue in self._queues if queue]
        running = self._scheduler.running
        return bool(heads and running) and min(heads) < max(map(attrgetter("priority"), running))

    def rest(self, request: Request) -> None:
        """Keep a request that is being preempted from running in the next step, if there is a connector.

        vLLM itself admits none in a step in which it preempts one, and connectors rely on that: in its own
        offloading, a transfer of a request that the step reports as preempted must be a store.
        """
        if self._queues and getattr(self._scheduler, "connector", None) is not None:
            self._resting.append(request)

    def end_rest(self) -> None:
        """Let those run that were preempted for the step that has just been scheduled."""
        rested, self._resting = self._resting, []
        for request in rested:
            for queue in (*self._queues, *self._released):
                if request in queue:
                    queue.prepend_request(request)

    def take_passed_over(self) -> list[Request]:
        """Return the requests that vLLM has looked at in the step and put back, whatever the reason."""
        passed_over: list[Request] = []
        for queue in self._queues:
            passed_over += queue.passed_over
            queue.passed_over = []
        return passed_over

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

    def enter(self, request: Request) -> None:
        """Put a new request behind all others of its own priority, if the operator wants that to count."""
        given = int(request.priority) if self.has_priorities else 0
        request.priority = (given << _RANK_BITS) + UNRANKED

    def rank(self, request: Request) -> Rank:
        """Return the present rank of a request that has entered, among those of its priority."""
        rank = self._rank_of(request.request_id)
        if rank is None:
            return Rank(request.priority)
        if not self.has_priorities:
            return rank
        return rank._replace(own=rank.own + (_given_priority(request) << _RANK_BITS))

    def _rank_or_last(self, request: Request) -> Rank:
        try:
            return self.rank(request)
        except Exception as error:  # noqa: BLE001 -- vLLM waits for the queue
            self.fault = error
            return Rank(UNRANKED)

    def _boost_or_none(self, work_class: WorkClass | None) -> int:
        try:
            return self._boost_of(work_class)
        except Exception as error:  # noqa: BLE001 -- as above
            self.fault = error
            return 0

    def _look(self) -> None:
        try:
            self._on_look()
        except Exception as error:  # noqa: BLE001 -- as above
            self.fault = error

    def _holds_back(self, request: Request) -> bool:
        try:
            return request in self._resting or self._is_held_back(request.request_id)
        except Exception as error:  # noqa: BLE001 -- as above
            self.fault = error
            return False

    def rerank(self, request: Request) -> None:
        """Give a request the priority of its present rank.

        Those that wait are ordered by their ranks.
        """
        request.priority = self.rank(request).number

    def given_priority(self, request_id: str) -> int:
        """Return the priority that a request came with, 0 where it does not count; smaller goes first."""
        return _given_priority(self._scheduler.requests[request_id])

    def reposition(self, request_id: str) -> None:
        """Give a request the place of its present rank."""
        request = self._scheduler.requests[request_id]
        self.rerank(request)
        for queue in self._queues:
            if request in queue:
                queue.add_request(request)

    def move_group(self, rank: Rank) -> None:
        """Give the waiting requests of a group the base and the class of this rank of one of them."""
        for queue in self._queues:
            queue.move_group(rank.group, rank.base, rank.work_class)

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


def _by_arrival(_: Request) -> Rank:
    return Rank(0)


def _by_priority(request: Request) -> Rank:
    return Rank(request.priority, round(request.arrival_time * 1e6))


def _given_priority(request: Request) -> int:
    # A rank may be a little below zero.
    return int(request.priority + (1 << (_RANK_BITS - 1))) >> _RANK_BITS
