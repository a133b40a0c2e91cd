"""A waiting queue in vLLM's interface that can move a request, or all of a program, without a walk."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from autellix_backend.core.place import WorkClass
from autellix_backend.vllm_plugin.ranks import Rank

_SLACK = 64

_Queued = tuple[int, int, Request]


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that move together, or one that moves alone."""

    base: int
    work_class: WorkClass | None
    requests: list[_Queued] = field(default_factory=list)
    """Requests by their own part of the rank, then in order of entry."""
    entry: _Entry | None = None
    """Its valid entry in the heap, which is that of its first request."""


_Entry = tuple[int, int, int, _Group]
"""The number of its first request without the boost, that request's entry, its own number, and the group."""


def _by_priority(request: Request) -> Rank:
    return Rank(request.priority)


class RankedRequestQueue(RequestQueue):
    """Requests by rank, the smallest first, then in order of entry; some are held back.

    vLLM takes the first request as long as the queue is true: those that are held back do not count there.
    They are unfinished all the same and may be aborted, so they are counted, listed and removed like others.

    vLLM calls the methods in the middle of its own work, so none raises, except where there is no first
    request. It may add a request that is queued already, as 0.32 adds a streaming session whose part ends
    after a preemption, and remove one that is not.

    vLLM's own priority queue re-heaps everything when a request is removed, comparing in Python: milliseconds
    with ten thousand waiting. Here a group of requests has one entry in a heap, however many it has, and a
    void entry stays there and is passed over when it comes up. Each class of work has a heap, and the first
    entries are compared by the present boosts of their classes.
    """

    def __init__(
        self,
        requests: Iterable[Request] = (),
        is_held_back: Callable[[Request], bool] = lambda _: False,
        rank_of: Callable[[Request], Rank] = _by_priority,
        deferred: set[Request] | None = None,
        boost_of: Callable[[WorkClass | None], int] = lambda _: 0,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue requests.

        Args:
            requests: The first ones.
            is_held_back: Asked of each request that is added or moved; must not raise.
            rank_of: Returns the rank of a request that is added or moved; must not raise.
            deferred: vLLM's set of waiting requests that no free slot or block would help, where it looks to
                learn whether it is short of capacity; those that are held back are in it.
            boost_of: Returns the present boost of a class of work, as a part of a rank's number; must not
                raise.
            on_look: Called when vLLM looks at the first request; must not raise.
        """
        self._is_held_back = is_held_back
        self._rank_of = rank_of
        self._deferred = set() if deferred is None else deferred
        self._boost_of = boost_of
        self._on_look = on_look
        self._heaps: dict[WorkClass | None, list[_Entry]] = {}
        self._entries = 0
        """Entries of all heaps."""
        self._groups: dict[Hashable, _Group] = {}
        """Requests that move together, by the group of the rank; one that moves alone is its own group."""
        self._queued: dict[Request, tuple[Hashable, _Queued]] = {}
        self._held_back: dict[Request, int] = {}
        """The number of their entry."""
        self._peeked: Request | None = None
        """What vLLM has looked at, until the queue changes."""
        self._numbers = count(1)
        self.passed_over: list[Request] = []
        """What vLLM has looked at in a step, and put back because it could not run it."""
        for request in requests:
            self.add_request(request)

    def add_request(self, request: Request) -> None:
        """Give a request the place of its rank, behind others of that rank, or hold it back."""
        self._add(request, next(self._numbers))

    def _add(self, request: Request, number: int) -> None:
        self.remove_request(request)
        if self._is_held_back(request):
            self._held_back[request] = number
            self._deferred.add(request)
            return
        rank = self._rank_of(request)
        key = request if rank.group is None else rank.group
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(rank.base, rank.work_class)
        group.base = rank.base
        queued = (rank.own, number, request)
        insort(group.requests, queued)
        self._queued[request] = (key, queued)
        self._place(group, rank.work_class)

    def pop_request(self) -> Request:
        """Remove and return the first request."""
        request = self.first() if self._peeked is None else self._peeked
        self.remove_request(request)
        return request

    def peek_request(self) -> Request:
        """Return the first request; IndexError if there is none, as vLLM's queues do."""
        self._on_look()
        self._peeked = self.first()
        return self._peeked

    def first(self) -> Request:
        """Return the first request as `peek_request` does, but for our own use."""
        heads = [(work_class, self._head(heap)) for work_class, heap in self._heaps.items()]
        found = [(head, work_class) for work_class, head in heads if head is not None]
        if len(found) < len(heads):
            self._heaps = {work_class: self._heaps[work_class] for _, work_class in found}
        if not found:
            raise IndexError("peek from an empty queue")
        if len(found) > 1:
            found = [
                ((head[0] + self._boost_of(work_class), *head[1:]), work_class) for head, work_class in found
            ]
        return min(found)[0][-1].requests[0][-1]

    def _head(self, heap: list[_Entry]) -> _Entry | None:
        """Return the first valid entry of a heap, None if there is none."""
        while heap:
            if heap[0][-1].entry is heap[0]:
                return heap[0]
            heapq.heappop(heap)
            self._entries -= 1
        return None

    def prepend_request(self, request: Request) -> None:
        """Give a request the place of its rank, in front of others of that rank, or hold it back."""
        self._add(request, -next(self._numbers))

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Prepend several requests, one after another: those that vLLM has passed over in a step."""
        self.passed_over = list(requests)
        for request in self.passed_over:
            self.prepend_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of the given requests that are in the queue."""
        for request in requests:
            self.remove_request(request)

    def move_group(self, group: Hashable, base: int, work_class: WorkClass | None = None) -> None:
        """Give all requests of a group another base and class of work; there may be none."""
        self._peeked = None
        found = self._groups.get(group)
        if found is not None:
            found.base = base
            self._place(found, work_class)

    def release(self, rank_of: Callable[[Request], Rank], requests: Iterable[Request]) -> None:
        """Order by other ranks from now on, and ask again which requests are held back.

        Args:
            rank_of: Returns the rank of a request, alone.
            requests: All that are queued, those of one rank in their order; others may be among them.
        """
        self._rank_of, self._on_look = rank_of, lambda: None
        self._peeked = None
        for request in requests:
            if request in self:
                self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Remove a request, if it is in the queue."""
        self._peeked = None
        if self._held_back.pop(request, None) is not None:
            self._deferred.discard(request)
            return
        key, queued = self._queued.pop(request, (None, None))
        if queued is None:
            return
        group = self._groups[key]
        del group.requests[bisect_left(group.requests, queued)]
        if group.requests:
            self._place(group, group.work_class)
        else:
            group.entry = None
            del self._groups[key]

    def _place(self, group: _Group, work_class: WorkClass | None) -> None:
        """Put a group where its first request belongs."""
        own, number, _ = group.requests[0]
        place = (group.base + own, number)
        if group.entry is None or group.entry[:2] != place or group.work_class != work_class:
            group.work_class = work_class
            group.entry = (*place, next(self._numbers), group)
            heapq.heappush(self._heaps.setdefault(work_class, []), group.entry)
            self._entries += 1
            if self._entries > 2 * len(self._groups) + _SLACK:
                self._drop_void()

    def _drop_void(self) -> None:
        """Make the heaps again of the valid entries."""
        self._heaps, self._entries = {}, len(self._groups)
        for group in self._groups.values():
            assert group.entry is not None
            self._heaps.setdefault(group.work_class, []).append(group.entry)
        for heap in self._heaps.values():
            heapq.heapify(heap)

    def __contains__(self, request: object) -> bool:
        return request in self._queued or request in self._held_back

    def __bool__(self) -> bool:
        return bool(self._queued)

    def __len__(self) -> int:
        return len(self._queued) + len(self._held_back)

    def __iter__(self) -> Iterator[Request]:
        boosts = {
            each: self._boost_of(each) for each in {group.work_class for group in self._groups.values()}
        }
        queued = [
            (group.base + boosts[group.work_class] + own, number, request)
            for group in self._groups.values()
            for own, number, request in group.requests
        ]
        held_back = [
            (self._rank_of(request).number, number, request) for request, number in self._held_back.items()
        ]
        return (request for _, _, request in [*sorted(queued), *sorted(held_back)])
