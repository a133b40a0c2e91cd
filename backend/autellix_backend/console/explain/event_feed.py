"""The event feed: events of calls, programs and engines for subscribers.

Each subscription has a bounded queue. A client that reads too slowly misses events and learns how many;
nothing waits for it. Without subscribers an event costs one test.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from autellix_backend.console.history.groups import Straggler
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_backend.stores.base import CallStart

MAX_PENDING = 1000
"""Events that are queued for one subscription; further ones are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event in plain values."""

    kind: str
    at_s: float
    """Seconds since 1970."""
    program_id: str | None
    """The backend's id; None for an event of an engine."""
    facts: dict[str, Any]


class Subscription:
    """One client's queue of events."""

    def __init__(self, viewer: Tenant, program_ids: tuple[str, ...] | None) -> None:
        self.viewer = viewer
        self._program_ids = program_ids
        self._pending: asyncio.Queue[Event] = asyncio.Queue(MAX_PENDING)
        self.dropped = 0
        """Events missed since the last take()."""

    def offer(self, event: Event) -> bool:
        """Queue an event if this client may see it; return False if the queue was full."""
        if not self._is_for(event):
            return True
        if self._pending.full():
            self.dropped += 1
            return False
        self._pending.put_nowait(event)
        return True

    async def take(self) -> tuple[list[Event], int]:
        """Wait for events; return the queued ones, and the number of those missed after them."""
        events = [await self._pending.get()]
        events += [self._pending.get_nowait() for _ in range(self._pending.qsize())]
        dropped, self.dropped = self.dropped, 0
        return events, dropped

    def _is_for(self, event: Event) -> bool:
        if event.program_id is None:
            # Only admins see engines.
            return self.viewer.is_admin and self._program_ids is None
        if self._program_ids is not None:
            return event.program_id in self._program_ids
        return self.viewer.is_admin or self.viewer.owns(event.program_id)


class EventFeed:
    """Publishes events of calls, programs and engines to its subscribers."""

    def __init__(
        self,
        find_call: Callable[[str], GatewayCall | None],
        wall_clock: Callable[[], float],
        on_drop: Callable[[], None],
    ) -> None:
        """Create a feed without subscriptions; `find_call` returns the open call of an id in the engine."""
        self._find_call = find_call
        self._wall_clock = wall_clock
        self._on_drop = on_drop
        self._subscriptions: set[Subscription] = set()

    def count_of(self, viewer: Tenant) -> int:
        """Return the number of a tenant's subscriptions."""
        return sum(subscription.viewer.name == viewer.name for subscription in self._subscriptions)

    @property
    def subscriber_count(self) -> int:
        """Return the number of subscriptions."""
        return len(self._subscriptions)

    @contextlib.contextmanager
    def subscribe(self, viewer: Tenant, program_ids: tuple[str, ...] | None = None) -> Iterator[Subscription]:
        """Queue the events that a tenant may see while inside, or only those of the given programs."""
        subscription = Subscription(viewer, program_ids)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def on_call_begun(self, call: GatewayCall) -> None:
        """Publish that a call began."""
        if self._subscriptions:
            self._publish_call(
                "begun", call.start, level=call.level, inherited_service_s=call.inherited.service_s
            )

    def on_call_settled(self, settled: SettledCall) -> None:
        """Publish that a call was settled."""
        if not self._subscriptions:
            return
        receipt = settled.receipt
        self._publish_call(
            "settled",
            settled.start,
            outcome=settled.outcome,
            wait_s=receipt.wait_s,
            service_s=receipt.service_s,
            level=receipt.level,
            preemptions=receipt.preemptions,
            promotions=receipt.promotions,
            prompt_tokens=receipt.prompt_tokens,
            output_tokens=receipt.output_tokens,
        )

    def on_program_ended(self, program_id: str) -> None:
        """Publish that a program left the process table."""
        if self._subscriptions:
            self._publish("program_ended", program_id, {})

    def on_straggler(self, late: Straggler) -> None:
        """Publish that a program takes far longer than the others of its group."""
        if self._subscriptions:
            facts = {"group": late.group, "name": late.name, "age_s": late.age_s, "median_s": late.median_s}
            self._publish("straggler", late.program_id, {**facts, "over_median": late.over_median})

    def engine_changed(self, engine: str, state: str, reason: str | None) -> None:
        """Publish an engine's new state."""
        if self._subscriptions:
            self._publish("engine", None, {"engine": engine, "state": state, "reason": reason})

    def snapshot_taken(self, engine: str, before: EngineSnapshot | None, after: EngineSnapshot) -> None:
        """Publish the promotions and preemptions between two snapshots of an engine."""
        if not self._subscriptions or before is None:
            return
        known = {(call.call_id, call.thread_id): call for call in before.calls}
        for standing in after.calls:
            past = known.get((standing.call_id, standing.thread_id))
            call = self._find_call(standing.call_id)
            if past is None or call is None:
                continue
            if standing.promotions > past.promotions:
                self._publish_call("promoted", call.start, engine=engine, waited_s=standing.wait_s)
            if standing.preemptions > past.preemptions:
                self._publish_call("preempted", call.start, engine=engine, level=standing.level)

    def _publish_call(self, kind: str, call: CallStart, **facts: Any) -> None:
        named = {"call_id": call.call_id, "thread_id": call.thread_id, "name": call.name, **facts}
        self._publish(kind, call.program_id, named)

    def _publish(self, kind: str, program_id: str | None, facts: dict[str, Any]) -> None:
        event = Event(kind=kind, at_s=self._wall_clock(), program_id=program_id, facts=facts)
        for subscription in self._subscriptions:
            if not subscription.offer(event):
                self._on_drop()
