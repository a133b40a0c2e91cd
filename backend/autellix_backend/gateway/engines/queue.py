"""The queue before one engine: calls wait here while the engine is full, down or being restarted.

A queued call waits for its turn, holds a slot while the engine has it, and leaves. It waits for a slot as
long as its client does, and for an engine that is down `gateway.recovery_wait_s` at most. If another engine
can take it meanwhile, it moves there. When the gateway shuts down, queued calls are refused at once, because
they have cost nothing yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from autellix_backend.core.arrival import Arrival
from autellix_backend.engines.supervisor import EngineState, Supervisor
from autellix_backend.gateway.engines.ordering import Ordering, PolicyOrdering, Wait
from autellix_backend.gateway.engines.refusals import Caller, Refusals
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import Usage
from autellix_backend.settings import Settings

RETRY_S = 0.5
"""How long no call is sent after one that found no connection to the engine."""
ESTIMATED = "estimated by the gateway: this engine does not report its memory"


class QueuedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call in the queues of the engines that it is sent to, one after the other."""

    arrival: Arrival
    """What the order depends on."""
    caller: Caller
    """Whose it is."""
    wait_s: float = 0.0
    """The time in queues, over all attempts."""
    inactive_s: float = 0.0
    """The part of the time in queues in which the program was inactive."""
    counted_wait_s: float = 0.0
    """The part of its time in queues that counts for its program's wait/service ratio."""
    was_repeated: bool = False
    """Whether an engine died or refused it, and it was sent to another one."""
    unreachable_since_s: float | None = None
    """Since when it has found no connection to an engine."""
    since_s: float = 0.0
    """When it entered its present queue."""
    is_alone: bool = False
    """Whether it is a program of its own to its engine, which ends with it."""
    restarts: int = 0
    """How often the engine that it was sent to had been restarted."""
    usage: Usage | None = None
    """The tokens that its answer states, once it is settled; read only where they are needed."""


@dataclass(slots=True, eq=False)
class Turn:
    """A call's place in one queue, until it leaves the engine."""

    call: QueuedCall
    ordering: Ordering
    """The order that it entered."""
    may_send: asyncio.Future[bool]
    """Done when it may be sent (True) or has to move to another engine's queue (False)."""


@dataclass(slots=True, eq=False, kw_only=True)
class EngineQueue:
    """The calls that one gateway has for one engine, queued or sent."""

    engine: str
    ordering: Ordering
    supervisor: Supervisor
    settings: Settings
    metrics: GatewayMetrics
    refusals: Refusals
    can_move: Callable[[Caller, bool], bool]
    """Returns whether another engine accepts such calls; with True also whether one does that is paused."""
    clock: Callable[[], float]
    is_draining: bool = False
    """Whether queued calls should move to other engines."""
    busy_since_s: float | None = None
    """Since when the engine has been busy with calls; None while it has none."""
    _queued: dict[str, Turn] = field(default_factory=dict)
    _in_flight: int = 0
    _retry_at_s: float = -math.inf
    """Until when no call is sent, because one found no connection."""
    _lost_since_s: float | None = None
    """Since when calls cannot be sent, as of the last pump()."""
    _is_shutting_down: bool = False
    _wake: asyncio.TimerHandle | None = None
    """The timer of the next pump(), at the time that the order asked for."""

    def __len__(self) -> int:
        return len(self._queued)

    def can_send(self) -> bool:
        """Return whether a call that arrives now may be sent, as far as that is known."""
        return self.supervisor.is_up and self.clock() >= self._retry_at_s

    def why_queued(self, key: str) -> str | None:
        """Return why a call waits here, None if it does not."""
        if key not in self._queued:
            return None
        if (obstacle := self._obstacle()) is not None:
            return obstacle
        if (inactive := self.ordering.inactive(key)) is not None:
            return f"it waits for KV memory: {inactive.text} ({ESTIMATED})"
        return f"the calls in flight at {self.engine} have reached the limit of {self.ordering.slots}"

    def is_queued(self, key: str) -> bool:
        """Whether a call waits here."""
        return key in self._queued

    def waits_for_memory(self, key: str) -> bool:
        """Whether a call waits here because its program is inactive."""
        return key in self._queued and self._obstacle() is None and self.ordering.is_inactive(key)

    @property
    def in_flight(self) -> int:
        """The calls that were sent and have not ended."""
        return self._in_flight

    def limit(self, slots: float) -> None:
        """Let this many calls be in flight from now on; those beyond go on."""
        if isinstance(self.ordering, PolicyOrdering):
            self.ordering.slots = slots
            self.pump()

    @property
    def has_policy(self) -> bool:
        """Whether the scheduler's policy orders the calls here, because the engine cannot."""
        return self.ordering.has_policy

    def use(self, ordering: Ordering) -> None:
        """Replace the order of queued and later calls; sent calls leave the one that they entered."""
        now = self.clock()
        for key, turn in self._queued.items():
            if (wait := self.ordering.leave(key, now)) is not None:
                self._note_wait(turn.call, wait)
            turn.ordering = ordering
            ordering.enter(turn.call.arrival, now)
        self.ordering = ordering
        self.pump()

    def on_program_ended(self, program_id: str) -> None:
        """Free what is kept for a program."""
        self.ordering.on_program_ended(program_id, self.clock())
        self.pump()

    @contextlib.asynccontextmanager
    async def turn(self, call: QueuedCall) -> AsyncIterator[bool]:
        """Wait for a call's turn, and hold a slot of the engine inside if it may be sent.

        Yields:
            Whether the call may be sent; otherwise it has to move, because only other engines accept calls.

        Raises:
            EngineUnavailableError: if the engine is gone for good, or does not return in time.
            ShuttingDownError: if the gateway shuts down meanwhile.
        """
        turn = Turn(call, self.ordering, asyncio.get_running_loop().create_future())
        call.since_s = self.clock()
        self.ordering.enter(call.arrival, call.since_s)
        self._queued[call.arrival.call_id] = turn
        self.pump()
        try:
            self.judge()
            yield await turn.may_send
        finally:
            self._leave(turn)

    def on_reached(self, call: QueuedCall) -> None:
        """Note that the engine answered a call."""
        call.unreachable_since_s = None
        was_blocked, self._retry_at_s = self._retry_at_s > self.clock(), -math.inf
        if was_blocked:
            self.pump()

    def on_unreached(self, call: QueuedCall) -> None:
        """Note that a call found no connection to the engine: the supervisor looks, others wait meanwhile."""
        now = self.clock()
        self._retry_at_s = now + RETRY_S
        if call.unreachable_since_s is None:
            call.unreachable_since_s = now
        self.supervisor.suspect()
        self.pump()

    async def has_died(self, call: QueuedCall) -> bool:
        """Probe whether the engine process that a call was sent to is gone; another may have replaced it."""
        return call.restarts != self.supervisor.restarts or not await self.supervisor.check()

    def shut_down(self) -> None:
        """Refuse queued calls, now and from now on; the ones at the engine go on."""
        self._is_shutting_down = True
        self.judge()

    def pump(self) -> None:
        """Send the calls that may be admitted."""
        now, can_send = self.clock(), self.can_send()
        is_open = can_send and not self._is_shutting_down
        while self._queued and is_open:
            key = self.ordering.next(now)
            is_paused = now < self.refusals.until_s
            if key is None or (is_paused and self._is_better_elsewhere(self._queued[key].call)):
                break
            self._send(self._queued.pop(key), self.ordering.send(key, now), now)
        self._set_wake(self.ordering.wake_s - now if self._queued and is_open else math.inf)
        if can_send:
            self._lost_since_s = None
        elif self._lost_since_s is None:
            self._lost_since_s = now

    def judge(self) -> None:
        """Move or refuse the queued calls that wait for more than a slot, and wait in vain."""
        if not self._queued:
            return
        obstacle = self._obstacle()
        is_leaving = obstacle is not None or self.is_draining
        if not is_leaving and not self.refusals.is_paused and not self._is_shutting_down:
            return
        can_move, is_failed = functools.cache(self.can_move), self.supervisor.state is EngineState.FAILED
        for key, turn in list(self._queued.items()):
            call = turn.call
            if turn.may_send.done():
                # It was cancelled and leaves soon.
                continue
            if self._is_shutting_down:
                self._refuse(turn, ShuttingDownError(), "draining")
            elif can_move(call.caller, True) if is_leaving else self._is_better_elsewhere(call):
                del self._queued[key]
                turn.may_send.set_result(False)
            elif obstacle is not None and (is_failed or self._has_waited(call)):
                self._refuse(turn, EngineUnavailableError(obstacle), "engine_unavailable")

    def _is_better_elsewhere(self, call: QueuedCall) -> bool:
        """Return whether another engine should get a call, because this one is paused; judge() moves it."""
        # One that others have refused may be for this one alone.
        return (
            not call.was_repeated and self.refusals.pauses(call.caller) and self.can_move(call.caller, False)
        )

    def _set_wake(self, after_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if after_s < math.inf:
            self._wake = asyncio.get_running_loop().call_later(after_s, self.pump)

    def _obstacle(self) -> str | None:
        """Return why no call may be sent, None if calls may."""
        if not self.supervisor.is_up:
            return f"engine {self.engine} is not ready: {self.supervisor.problem}"
        if not self.can_send():
            return f"engine {self.engine} could not be reached"
        return None

    def _has_waited(self, call: QueuedCall) -> bool:
        now, since_s = self.clock(), call.unreachable_since_s
        if since_s is None:
            since_s = max(call.since_s, now if self._lost_since_s is None else self._lost_since_s)
        return now - since_s >= self.settings.gateway.recovery_wait_s

    def _refuse(self, turn: Turn, error: Exception, reason: str) -> None:
        self.metrics.count_refusal("", reason)
        del self._queued[turn.call.arrival.call_id]
        turn.may_send.set_exception(error)

    def _send(self, turn: Turn, wait: Wait, now: float) -> None:
        call = turn.call
        self._note_wait(call, wait)
        self._in_flight += 1
        if self.busy_since_s is None:
            self.busy_since_s = now
        call.restarts = self.supervisor.restarts
        if self.refusals.until_s > -math.inf:
            self.refusals.on_sent(call.caller)
        if not turn.may_send.done():
            turn.may_send.set_result(True)

    def _leave(self, turn: Turn) -> None:
        call = turn.call
        self._queued.pop(call.arrival.call_id, None)
        wait = turn.ordering.leave(call.arrival.call_id, self.clock(), call.usage)
        if call.is_alone:
            turn.ordering.on_program_ended(call.arrival.program_id, self.clock())
        if wait is not None:
            self._note_wait(call, wait)
        else:
            self._in_flight -= 1
            if not self._in_flight:
                self.busy_since_s = None
        if turn.may_send.done() and not turn.may_send.cancelled():
            # A cancelled call does not retrieve its refusal, which asyncio would log then.
            turn.may_send.exception()
        if self._queued:
            self.pump()

    def _note_wait(self, call: QueuedCall, wait: Wait) -> None:
        call.wait_s += wait.wait_s
        call.inactive_s += wait.inactive_s
        call.counted_wait_s += wait.counted_s
        self.metrics.queue_s.labels(self.engine).observe(wait.wait_s)
