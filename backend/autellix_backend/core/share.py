"""Fair share between tenants: whose turn it is, before the policy says which of a tenant's calls.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with seconds of service in the place of
packets. Each tenant has a virtual time, the service charged to its calls divided by its weight, and the
tenant with the least goes first. The j-th call of a tenant's own queue is ordered by

    virtual time + j * slice / weight

as if each call before it were going to run for one slice; so slots are split by weight within one batch, and
what a batch cannot split the virtual times make up for in the next ones. Three rules complete it:

1. A running call counts as one slice back, the start of the slice that it is in: a waiting call takes its
   slot only when its own tenant is behind by a whole slice. Without it, slots would change hands every step.
2. A tenant that had no call waiting was denied nothing. With the first call that waits it comes to within
   one slice of the engine's virtual time, so that idling saves up no more than that. The engine's is that of
   the tenant furthest behind of those with calls waiting, and it never goes back.
3. A tenant without calls is forgotten once it is behind by a slice. A tenant that nobody knows starts at the
   engine's virtual time.

Within one tenant the order is the policy's, and with one tenant there is no other.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from autellix_backend.core.call import Call
from autellix_backend.core.levels import Levels
from autellix_backend.core.size_order import SizeOrder

__all__ = ["Lane", "TenantShares"]

_Tagged = tuple[float, int, float, int, Call]


@dataclass(slots=True, kw_only=True)
class Lane:
    """One tenant: the queue of its calls and what it has had."""

    tenant: str
    queue: Levels | SizeOrder
    weight: float
    virtual_s: float
    """Charged service over weight (s); only differences between tenants matter."""
    active: int = 0
    waiting: int = 0


class TenantShares:
    """The tenants with active calls, and those without that are still ahead of them."""

    def __init__(
        self, slice_s: float, make_queue: Callable[[], Levels | SizeOrder], *, holds_slots: bool = False
    ) -> None:
        self.slice_s = slice_s
        self._make_queue = make_queue
        self._holds_slots = holds_slots
        self._lanes: dict[str, Lane] = {}
        self._gone: dict[str, Lane] = {}
        self._now_s = 0.0

    def __len__(self) -> int:
        """The number of tenants that something is kept for."""
        return len(self._lanes) + len(self._gone)

    @property
    def is_shared(self) -> bool:
        """Whether several tenants have active calls."""
        return len(self._lanes) > 1

    def queue(self, tenant: str) -> Levels | SizeOrder:
        """Return the queue of a tenant that has active calls."""
        return self._lanes[tenant].queue

    def enter(self, tenant: str, weight: float) -> None:
        """Take in a waiting call of a tenant, whose weight is this from now on."""
        lane = self._lanes.get(tenant)
        if lane is None or self._gone:
            self._forget()
        if lane is None:
            lane = self._gone.pop(tenant, None) or Lane(
                tenant=tenant, queue=self._make_queue(), weight=weight, virtual_s=self._now_s
            )
        lane.weight = weight
        lane.active += 1
        self._lanes[tenant] = lane
        self.wait(tenant)

    def wait(self, tenant: str) -> None:
        """Note that a call of the tenant begins to wait."""
        lane = self._lanes[tenant]
        if not lane.waiting:
            self._advance(other for other in self._lanes.values() if other is not lane)
            lane.virtual_s = max(lane.virtual_s, self._floor_s(lane))
        lane.waiting += 1

    def run(self, tenant: str) -> None:
        """Note that a waiting call of the tenant was given a slot."""
        self._lanes[tenant].waiting -= 1

    def charge(self, tenant: str, cost_s: float) -> None:
        """Charge service to the tenant."""
        lane = self._lanes[tenant]
        lane.virtual_s += cost_s / lane.weight

    def leave(self, call: Call) -> None:
        """Let a call go."""
        lane = self._lanes[call.tenant]
        lane.active -= 1
        lane.waiting -= not call.is_running
        if not lane.active:
            self._gone[call.tenant] = self._lanes.pop(call.tenant)
            self._forget()

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level over all tenants; nothing without calls."""
        return tuple(map(sum, zip(*(lane.queue.sizes() for lane in self._lanes.values()), strict=True)))

    def order(self, admissible: Callable[[Call], bool] | None = None) -> Iterator[Call]:
        """Walk the active calls that are admissible, the next to run first."""
        if self.is_shared:
            walks = [self._tagged(lane, admissible) for lane in self._lanes.values()]
            return (tagged[-1] for tagged in heapq.merge(*walks))
        return _pass(admissible, next((lane.queue for lane in self._lanes.values()), ()))

    def check(self) -> None:
        """Assert the invariants of the tenants and their queues."""
        for tenant, lane in self._lanes.items():
            lane.queue.check()
            calls = list(lane.queue)
            assert all(call.tenant == tenant for call in calls), lane
            assert len(calls) == lane.active > 0, lane
            assert sum(not call.is_running for call in calls) == lane.waiting, lane
            assert math.isfinite(lane.virtual_s), lane
            assert tenant not in self._gone, lane
        assert self._lanes or not self._gone
        assert not any(lane.active or lane.waiting for lane in self._gone.values())

    def _tagged(self, lane: Lane, admissible: Callable[[Call], bool] | None) -> Iterator[_Tagged]:
        """Walk a tenant's calls in the order of its queue, with their place among those of all."""
        step_s = self.slice_s / lane.weight
        for place, call in enumerate(_pass(admissible, lane.queue)):
            if call.is_running and self._holds_slots:
                tag_s = -math.inf
            else:
                tag_s = lane.virtual_s + (place - call.is_running) * step_s
            yield tag_s, call.level, call.size_s, call.seq, call

    def _floor_s(self, lane: Lane) -> float:
        """Return the least virtual time at which the tenant begins to wait."""
        return self._now_s - self.slice_s / lane.weight

    def _advance(self, lanes: Iterable[Lane]) -> None:
        """Bring the engine's virtual time to that of these tenants."""
        waiting_s, running_s = math.inf, -math.inf
        for lane in lanes:
            if lane.waiting:
                waiting_s = min(waiting_s, lane.virtual_s)
            else:
                running_s = max(running_s, lane.virtual_s)
        # Where nobody waits, nobody was denied anything: all come to the one that had the most.
        self._now_s = max(self._now_s, waiting_s if waiting_s < math.inf else running_s)

    def _forget(self) -> None:
        """Drop the tenants without calls that are behind by a slice."""
        self._advance(self._lanes.values())
        self._gone = {
            tenant: lane
            for tenant, lane in self._gone.items()
            if self._lanes and lane.virtual_s > self._floor_s(lane)
        }


def _pass(admissible: Callable[[Call], bool] | None, calls: Iterable[Call]) -> Iterator[Call]:
    return iter(calls) if admissible is None else filter(admissible, calls)
