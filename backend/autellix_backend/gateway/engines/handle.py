"""One engine of the pool, with all that leads to it and comes from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from autellix_backend.core.balance import EngineLoad
from autellix_backend.core.balance.cache_map import CacheMap
from autellix_backend.core.balance.speed import Speed, SpeedEstimate
from autellix_backend.core.snapshot import EngineSnapshot
from autellix_backend.engines.base import Engine
from autellix_backend.engines.kv_events import KvEventListener
from autellix_backend.engines.supervisor import Supervisor
from autellix_backend.gateway.engines.queue import EngineQueue
from autellix_backend.gateway.engines.report_receiver import ReportReceiver
from autellix_backend.gateway.engines.upstream import Upstream


@dataclass(slots=True, eq=False)
class EngineHandle:
    """An engine, its supervisor, the way to it, and what the gateway knows of its load."""

    engine: Engine
    supervisor: Supervisor
    dispatcher: EngineQueue
    upstream: Upstream
    usual_slots: int
    """Calls that it is taken to run at once, until it tells."""
    receiver: ReportReceiver | None = None
    cache: CacheMap | None = None
    """What its cache holds, where it publishes that."""
    kv_events: KvEventListener | None = None
    """Keeps the map true."""
    open_calls: int = 0
    """Requests of this gateway that it has, or that wait for it here."""
    is_draining: bool = False
    """Whether it is sent no further calls."""
    is_leaving: bool = False
    """Whether it is removed when its last call has ended."""
    speed: Speed = field(default_factory=Speed)
    snapshot: EngineSnapshot | None = None
    _reported_calls: int = 0
    """How many of our calls were open when it last told of its queues."""

    @property
    def name(self) -> str:
        """The name that receipts show."""
        return self.engine.name

    @property
    def has_accounts(self) -> bool:
        """Whether it tells what calls cost."""
        return self.engine.report_socket is not None

    @property
    def state(self) -> str:
        """Say in a word what can be expected of it."""
        if self.is_leaving:
            return "leaving"
        return "draining" if self.is_draining else self.supervisor.state.value

    def is_accepting(self) -> bool:
        """Say whether calls may be sent to it; no I/O."""
        return not self.is_draining and self.dispatcher.can_send()

    def open(self) -> None:
        """Listen to it and watch it; must be called in the event loop."""
        if self.receiver is not None:
            self.receiver.open()
        if self.kv_events is not None:
            self.kv_events.open()
        self.upstream.open()
        self.supervisor.open()

    async def close(self) -> None:
        """Undo open(); its connections end. The engine itself goes on."""
        await self.supervisor.close()
        await self.upstream.close()
        if self.kv_events is not None:
            await self.kv_events.close()
        if self.receiver is not None:
            self.receiver.close()

    def take(self, snapshot: EngineSnapshot) -> None:
        """Keep what it tells of its queues."""
        self.snapshot = snapshot
        self._reported_calls = self.open_calls

    def load(self, program_id: str, fastest: SpeedEstimate, *, is_accepting: bool) -> EngineLoad:
        """Return its load at this moment, and what it has cached of a program.

        Our own calls are counted here and now; what its last snapshot has beyond them are other gateways'.
        The fastest engine's speed stands in for its own while that is stale.
        """
        snapshot = self.snapshot if self.supervisor.is_up else None
        slots, others, kv_tokens = self.usual_slots, 0, math.inf
        if snapshot is not None:
            slots = max(1, snapshot.slots)
            others = max(0, snapshot.running + snapshot.waiting - self._reported_calls)
            kv_tokens = snapshot.kv_total_blocks * snapshot.kv_block_tokens
        calls = self.open_calls + others
        # Short of KV blocks, it runs fewer calls than it has slots.
        is_short = snapshot is not None and snapshot.is_block_short
        running = min(calls, snapshot.running if snapshot is not None and is_short else slots)
        speed = self.speed.estimate(fastest)
        return EngineLoad(
            name=self.name,
            running=running,
            waiting=calls - running,
            slots=slots,
            prefill_s_per_token=speed.prefill_s_per_token,
            decode_s_per_token=speed.decode_s_per_token,
            kv_tokens=kv_tokens,
            held_tokens=self.cache.held_tokens(program_id) if self.cache is not None else None,
            is_accepting=is_accepting,
        )


MakeHandle = Callable[[Engine], EngineHandle]
"""Builds the way to an engine that has been started."""
