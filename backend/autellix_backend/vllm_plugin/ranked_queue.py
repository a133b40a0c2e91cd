"""A waiting queue in vLLM's interface that can move a request without a walk over the others."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

_SLACK = 64

_Entry = tuple[int, int, Request]


class RankedRequestQueue(RequestQueue):
    """Requests by `priority`, smallest first, then in order of entry; some are held back.

    vLLM takes the first request as long as the queue is true: those that are held back do not count there.
    They are unfinished all the same and may be aborted, so they are counted, listed and removed like others.

    vLLM's own priority queue re-heaps everything when a request is removed, comparing in Python: milliseconds
    with ten thousand waiting. Here a removed entry stays in the heap and is passed over when it comes up.
    """

    def __init__(
        self,
        requests: Iterable[Request] = (),
        is_held_back: Callable[[Request], bool] = lambda _: False,
        deferred: set[Request] | None = None,
    ) -> None:
        """Queue requests.

        Args:
            requests: The first ones.
            is_held_back: Asked of each request that is added or moved.
            deferred: vLLM's set of waiting requests that no free slot or block would help, where it looks to
                learn whether it is short of capacity; those that are held back are in it.
        """
        self._is_held_back = is_held_back
        self._heap: list[_Entry] = []
        self._entries: dict[Request, _Entry] = {}
        self._held_back: dict[Request, _Entry] = {}
        self._deferred = set() if deferred is None else deferred
        self._offered: list[Request] | None = None
        """The only requests that vLLM may take, the next one last; None if it may take all."""
        self._sequence = 0
        self.prepend_requests(requests)

    def add_request(self, request: Request) -> None:
        """Add a request at the place its priority gives it, or hold it back."""
        self._sequence += 1
        entry = (request.priority, self._sequence, request)
        if self._is_held_back(request):
            self._held_back[request] = entry
            self._deferred.add(request)
            return
        self._entries[request] = entry
        heapq.heappush(self._heap, entry)

    def pop_request(self) -> Request:
        """Remove and return the first request."""
        request = self.peek_request()
        if self._offered is None:
            heapq.heappop(self._heap)
        else:
            self._offered.pop()
        del self._entries[request]
        return request

    def peek_request(self) -> Request:
        """Return the first request; IndexError if there is none, as vLLM's queues do."""
        if self._offered is not None:
            return self._offered[-1]
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(self._heap)
        raise IndexError("peek from an empty queue")

    def prepend_request(self, request: Request) -> None:
        """Add a request, where its priority puts it."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Add several requests."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Remove a request that is in the queue."""
        if self._held_back.pop(request, None) is None:
            del self._entries[request]
            self._compact()
        else:
            self._deferred.discard(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of the given requests that are in the queue."""
        for request in requests:
            self._discard(request)
        self._compact()

    def move_request(self, request: Request) -> None:
        """Give a queued request the place that its present priority asks for, or hold it back."""
        if request in self._held_back:
            self._deferred.discard(request)
        self._discard(request)
        self.add_request(request)
        self._compact()

    def offer(self, requests: Sequence[Request] | None) -> None:
        """Let vLLM see only these of the queued requests, in this order; with None, all again."""
        self._offered = None if requests is None else [r for r in reversed(requests) if r in self._entries]

    def release(self) -> None:
        """Hold nothing back from now on, and order all requests by their present priorities."""
        self._is_held_back = lambda _: False
        for request in list(self):
            self.move_request(request)

    def _discard(self, request: Request) -> None:
        self._entries.pop(request, None)
        self._held_back.pop(request, None)

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def __contains__(self, request: object) -> bool:
        return request in self._entries or request in self._held_back

    def __bool__(self) -> bool:
        return bool(self._entries if self._offered is None else self._offered)

    def __len__(self) -> int:
        return len(self._entries) + len(self._held_back)

    def __iter__(self) -> Iterator[Request]:
        entries = [*sorted(self._entries.values()), *sorted(self._held_back.values())]
        return (request for _, _, request in entries)
