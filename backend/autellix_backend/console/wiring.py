"""The console of a gateway: its parts, built and connected to what it follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from autellix_backend.console.explain.current_load import current_load, moment_of
from autellix_backend.console.explain.event_feed import EventFeed
from autellix_backend.console.explain.overview import overview_of
from autellix_backend.console.explain.recent_load import PERIOD_S, RecentLoad
from autellix_backend.console.history.groups import ProgramGroups
from autellix_backend.console.history.history import PastProgram, ProgramHistory
from autellix_backend.console.turns import AnswerTurns
from autellix_backend.engines.supervisor import EngineChange
from autellix_backend.gateway.wiring import Gateway
from autellix_backend.repeating import repeating

STRAGGLER_PERIOD_S = 1.0


class Console:
    """What operators see of one gateway: it follows settled calls, snapshots and the process table."""

    def __init__(self, gateway: Gateway, history: ProgramHistory) -> None:
        """Build the parts and subscribe them; `history` already follows the gateway's calls."""
        self.gateway = gateway
        self.history = history
        self.groups = ProgramGroups(ttl_s=gateway.settings.gateway.program_idle_s)
        self.load = RecentLoad(time.time)
        self.turns = AnswerTurns()
        metrics = gateway.metrics
        self.feed = feed = EventFeed(gateway.registry.find, time.time, metrics.events_dropped.inc)
        metrics.event_subscribers.set_function(lambda: feed.subscriber_count)
        self.replaying = asyncio.Lock()
        """Held while recent programs are simulated."""
        gateway.registry.subscribe(on_begun=feed.on_call_begun, on_settled=feed.on_call_settled)
        gateway.registry.subscribe(on_settled=self.load.on_call_settled)
        gateway.store.subscribe(lambda end: feed.on_program_ended(end.program_id))
        gateway.pool.subscribe(self._on_engine_change)
        gateway.pool.subscribe_snapshots(feed.snapshot_taken)
        history.subscribe(self.groups.on_program_ended, self.groups.on_member)
        history.subscribe(self._on_program_ended)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sample the load and look for stragglers while inside."""
        async with (
            repeating(PERIOD_S, self._sample_load),
            repeating(STRAGGLER_PERIOD_S, self._publish_stragglers),
        ):
            yield

    def _on_engine_change(self, change: EngineChange) -> None:
        self.feed.engine_changed(change.engine, change.state.value, change.reason)

    def _on_program_ended(self, program: PastProgram) -> None:
        self.load.on_program_ended(program.ended_at_s, program.duration_s)

    async def _sample_load(self) -> None:
        load = await current_load(self.gateway.store, overview_of(self.gateway))
        self.load.sample(moment_of(load))

    async def _publish_stragglers(self) -> None:
        """Publish the programs that have come to take far longer than the others of their group."""
        for straggler in self.groups.take_stragglers(self.gateway.clock()):
            self.feed.on_straggler(straggler)
