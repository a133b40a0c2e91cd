"""Fair share between tenants: which tenant goes first, before the policy orders each tenant's calls.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with seconds of service in the place of
packets. Each tenant has a virtual time, the service charged to its calls divided by its weight, and the
tenant with the least goes first. The j-th call of a tenant's own queue is ordered by

    virtual time + j * slice / weight

as if each call before it ran for one slice. So slots are split by weight within one batch, and virtual times
make up in later batches for what one batch cannot split. Three rules complete it:

1. A running call counts as one slice back, the start of the slice that it is in: a waiting call takes its
   slot only when its own tenant is behind by a whole slice. Without this rule slots would change hands at
   every step.
2. A tenant without waiting calls was denied nothing. With its first waiting call it rises to within one slice
   of the engine's virtual time, so that idling saves up no more than that. The engine's virtual time is that
   of the tenant furthest behind among those with waiting calls, and it never decreases.
3. A tenant without calls is forgotten once it is behind by a slice. An unknown tenant starts at the engine's
   virtual time.

Within one tenant the order is the policy's, and with one tenant there is no other order. Equal tags of two
tenants are ordered by level and arrival.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from autellix_backend.core.call import Call
from autellix_backend.core.queues.base import Queue

_Tagged = tuple[float, int, int, Call]
_Entry = tuple[float, int, int, Call | None, Iterator[_Tagged]]


@dataclass(slots=True, kw_only=True)
class TenantShare:
    """One tenant: the queue of its calls, and its share so far."""

    tenant: str
    queue: Queue
    weight: float
    virtual_s: float
    """Charged service over weight (s); only differences between tenants matter."""
    active: int = 0
    waiting: int = 0


class TenantShares:
    """The tenants with active calls, and those without that are still ahead of these."""

    def __init__(self, slice_s: float, make_queue: Callable[[], Queue], *, holds_slots: bool = False) -> None:
        self.slice_s = slice_s
        self._make_queue = make_queue
        self._holds_slots = holds_slots
        self._shares: dict[str, TenantShare] = {}
        self._idle: dict[str, TenantShare] = {}
        self._now_s = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether several tenants have active calls."""
        return len(self._shares) > 1

    @property
    def are_several(self) -> bool:
        """Whether the service of one tenant is compared with that of another."""
        return len(self._shares) + len(self._idle) > 1

    def knows_only(self, tenant: str) -> bool:
        """Whether no tenant but this one has had service that counts."""
        known = len(self._shares) + len(self._idle)
        return not known or (known == 1 and (tenant in self._shares or tenant in self._idle))

    def queue(self, tenant: str) -> Queue:
        """Return the queue of a tenant that has active calls."""
        return self._shares[tenant].queue

    def first_of(self, tenant: str, program_id: str) -> Call | None:
        """Return the first call of a tenant's program, with which all of them move; None if none does."""
        share = self._shares.get(tenant)
        return None if share is None else share.queue.first_of(program_id)

    def enter(self, tenant: str, weight: float) -> Queue:
        """Count a new waiting call of a tenant, set its weight, and return its queue."""
        share = self._shares.get(tenant)
        if share is None or self._idle:
            self._forget()
        if share is None:
            share = self._idle.pop(tenant, None) or TenantShare(
                tenant=tenant, queue=self._make_queue(), weight=weight, virtual_s=self._now_s
            )
        share.weight = weight
        share.active += 1
        self._shares[tenant] = share
        self.wait(tenant)
        return share.queue

    def wait(self, tenant: str) -> None:
        """Count a call of the tenant that begins to wait."""
        share = self._shares[tenant]
        if not share.waiting:
            self._advance(other for other in self._shares.values() if other is not share)
            share.virtual_s = max(share.virtual_s, self._floor_s(share))
        share.waiting += 1

    def run(self, tenant: str) -> None:
        """Count a waiting call of the tenant that got a slot."""
        self._shares[tenant].waiting -= 1

    def charge(self, tenant: str, cost_s: float) -> None:
        """Charge service to the tenant; one that has been forgotten since it ran owes nothing."""
        share = self._shares.get(tenant) or self._idle.get(tenant)
        if share is not None:
            share.virtual_s += cost_s / share.weight

    def leave(self, call: Call) -> None:
        """Remove a call from its queue; a tenant without calls is forgotten once it is behind by a slice."""
        share = self._shares[call.tenant]
        share.queue.remove(call)
        share.active -= 1
        share.waiting -= not call.is_running
        if not share.active:
            self._idle[call.tenant] = self._shares.pop(call.tenant)
            self._forget()

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level over all tenants; nothing without calls."""
        return tuple(
            map(sum, zip(*(share.queue.level_sizes() for share in self._shares.values()), strict=True))
        )

    def order(self, admissible: Callable[[Call], bool] | None = None) -> Iterator[Call]:
        """Walk the active calls that are admissible, the next to run first."""
        if self.is_shared:
            return self._merged(admissible)
        return _walk(admissible, next((share.queue for share in self._shares.values()), ()))

    def check(self) -> None:
        """Assert the invariants of the tenants and their queues."""
        for tenant, share in self._shares.items():
            share.queue.check()
            calls = list(share.queue)
            assert all(call.tenant == tenant for call in calls), share
            assert len(calls) == share.active > 0, share
            assert sum(not call.is_running for call in calls) == share.waiting, share
            assert math.isfinite(share.virtual_s), share
            assert tenant not in self._idle, share
        assert self._shares or not self._idle
        assert not any(share.active or share.waiting for share in self._idle.values())

    def _merged(self, admissible: Callable[[Call], bool] | None) -> Iterator[Call]:
        """Merge the walks of the tenants; one begins only when its first call may be the next of all."""
        heap: list[_Entry] = [
            # Of level 0, so that it precedes an equal tag.
            (self._least_tag_s(share), 0, number, None, self._tagged(share, admissible))
            for number, share in enumerate(self._shares.values())
        ]
        heapq.heapify(heap)
        while heap:
            *_, call, walk = heap[0]
            if call is not None:
                yield call
            following = next(walk, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (*following, walk))

    def _least_tag_s(self, share: TenantShare) -> float:
        """Return a bound below the tags of a tenant's calls."""
        if share.waiting == share.active:
            return share.virtual_s
        return -math.inf if self._holds_slots else share.virtual_s - self.slice_s / share.weight

    def _tagged(self, share: TenantShare, admissible: Callable[[Call], bool] | None) -> Iterator[_Tagged]:
        """Walk a tenant's calls in the order of its queue, with their tags in the order of all calls."""
        step_s, start_s = self.slice_s / share.weight, share.virtual_s
        for position, call in enumerate(_walk(admissible, share.queue)):
            if not call.is_running:
                tag_s = start_s + position * step_s
            elif self._holds_slots:
                tag_s = -math.inf
            else:
                tag_s = start_s + (position - 1) * step_s
            # Without the key, in which a tenant could state that its programs are urgent.
            yield tag_s, call.level, call.seq, call

    def _floor_s(self, share: TenantShare) -> float:
        """Return the least virtual time at which the tenant begins to wait."""
        return self._now_s - self.slice_s / share.weight

    def _advance(self, shares: Iterable[TenantShare]) -> None:
        """Bring the engine's virtual time to that of these tenants."""
        waiting_s, running_s = math.inf, -math.inf
        for share in shares:
            if share.waiting:
                waiting_s = min(waiting_s, share.virtual_s)
            else:
                running_s = max(running_s, share.virtual_s)
        # Where no call waits, no tenant was denied anything: all rise to the tenant that had the most.
        self._now_s = max(self._now_s, waiting_s if waiting_s < math.inf else running_s)

    def _forget(self) -> None:
        """Drop the tenants without calls that are behind by a slice."""
        self._advance(self._shares.values())
        self._idle = {
            tenant: share
            for tenant, share in self._idle.items()
            if self._shares and share.virtual_s > self._floor_s(share)
        }


def _walk(admissible: Callable[[Call], bool] | None, calls: Iterable[Call]) -> Iterator[Call]:
    return iter(calls) if admissible is None else filter(admissible, calls)
