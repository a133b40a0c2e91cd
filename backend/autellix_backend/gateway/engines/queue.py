"""The queue before one engine: calls wait here while the engine is full, down or being restarted.

A queued call waits for its turn, holds a slot while the engine has it, and leaves. It waits for a slot as
long as its client does, and for an engine that is down `gateway.recovery_wait_s` at most. If another engine
can take it meanwhile, it moves there. When the gateway shuts down, queued calls are refused at once, because
they have cost nothing yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Histogram

from autellix_backend.core.arrival import Arrival
from autellix_backend.gateway.engines.ordering import Ordering, Wait
from autellix_backend.gateway.engines.reachability import Reachability
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call in the queues of the engines that it is sent to, one after the other."""

    arrival: Arrival
    wait_s: float = 0.0
    """Its time in queues, over all attempts."""
    counted_wait_s: float = 0.0
    """The part of it that counts for its program's wait/service ratio."""
    unreachable_since_s: float | None = None
    """Since when it has found no connection to an engine."""
    since_s: float = 0.0
    """When it entered its present queue."""
    turn: asyncio.Future[bool] | None = None
    """Done when it may go to the engine (True) or has to move to another engine's queue (False)."""
    restarts: int = 0
    """How often the engine that it was sent to had been restarted."""
    is_trial: bool = False
    """Whether the circuit breaker waits for its outcome."""

    def note(self, wait: Wait) -> None:
        """Add its time in one queue."""
        self.wait_s += wait.wait_s
        self.counted_wait_s += wait.counted_s


class EngineQueue:
    """The calls that one gateway has for one engine, queued or sent."""

    def __init__(
        self,
        ordering: Ordering,
        reachability: Reachability,
        *,
        full: str,
        recovery_wait_s: float,
        wait_s: Histogram,
        on_refusal: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """Create an empty queue.

        Args:
            ordering: Decides which call goes next.
            reachability: Tells whether calls can be sent.
            full: Why a call waits if the engine can be reached.
            recovery_wait_s: How long a call waits for an engine that is down.
            wait_s: Observes the time that calls spend in the queue.
            on_refusal: Is called with the reason of each refusal.
            clock: Monotonic seconds.
        """
        self._ordering = ordering
        self._reachability = reachability
        self._full = full
        self._recovery_wait_s = recovery_wait_s
        self._wait_s = wait_s
        self._on_refusal = on_refusal
        self._clock = clock
        self._queued: dict[str, QueuedCall] = {}
        self._in_flight = 0
        self.busy_since_s: float | None = None
        """Since when the engine has had calls without a pause; None while it has none."""
        self._is_shutting_down = False
        self.is_draining = False
        """Whether queued calls should move to other engines."""

    def __len__(self) -> int:
        return len(self._queued)

    def why_queued(self, key: str) -> str | None:
        """Return why a call waits here, None if it does not."""
        return (self._reachability.obstacle() or self._full) if key in self._queued else None

    @property
    def is_blocked(self) -> bool:
        """Whether calls are queued that wait for more than a slot; they have to be judged."""
        has_to_go = self._is_shutting_down or self.is_draining
        return bool(self._queued) and (has_to_go or self._reachability.obstacle() is not None)

    def enter(self, call: QueuedCall) -> None:
        """Queue a call; it has to leave() in the end."""
        call.since_s = self._clock()
        call.turn = asyncio.get_running_loop().create_future()
        self._ordering.enter(call.arrival, call.since_s)
        self._queued[call.arrival.call_id] = call
        self.pump()

    def leave(self, call: QueuedCall) -> None:
        """Remove a call, wherever it is, and free its slot."""
        self._queued.pop(call.arrival.call_id, None)
        if (wait := self._ordering.leave(call.arrival.call_id, self._clock())) is not None:
            self._note_wait(call, wait)
        else:
            self._in_flight -= 1
            if not self._in_flight:
                self.busy_since_s = None
        if call.turn is not None and call.turn.done() and not call.turn.cancelled():
            # Mark a refusal as seen that the call, cancelled meanwhile, did not see.
            call.turn.exception()
        if call.is_trial:
            call.is_trial = False
            self._reachability.on_trial_abandoned()
        self.pump()

    def on_reached(self, call: QueuedCall) -> None:
        """Note that the engine answered a call."""
        call.is_trial = False
        call.unreachable_since_s = None
        self._reachability.on_reached()
        self.pump()

    def on_unreached(self, call: QueuedCall) -> None:
        """Note that a call found no connection to the engine."""
        call.is_trial = False
        if call.unreachable_since_s is None:
            call.unreachable_since_s = self._clock()
        self._reachability.on_unreached()
        self.pump()

    async def has_died(self, call: QueuedCall) -> bool:
        """Probe whether the engine process that a call was sent to is gone; another may have replaced it."""
        return not await self._reachability.is_same_process(call.restarts)

    def shut_down(self) -> None:
        """Refuse queued calls, now and from now on; the ones at the engine go on."""
        self._is_shutting_down = True
        self.judge(can_move=False)

    def pump(self) -> None:
        """Send the calls whose turn it is."""
        now = self._clock()
        is_open = self._reachability.is_up and not self._is_shutting_down
        while self._queued and is_open:
            key = self._ordering.next(now)
            if key is None or not self._reachability.pass_breaker(now):
                break
            self._send(self._queued.pop(key), now)
        self._reachability.refresh()

    def judge(self, *, can_move: bool) -> None:
        """Decide about the queued calls that have nothing to wait for here, or have waited long enough.

        Args:
            can_move: Whether another engine accepts calls.
        """
        for call in list(self._queued.values()):
            self._judge(call, can_move=can_move)

    def _judge(self, call: QueuedCall, *, can_move: bool) -> None:
        assert call.turn is not None
        if call.turn.done():
            # It was cancelled, and leaves soon.
            return
        if self._is_shutting_down:
            self._refuse(call, ShuttingDownError(), "draining")
            return
        obstacle = self._reachability.obstacle()
        if can_move and (obstacle is not None or self.is_draining):
            del self._queued[call.arrival.call_id]
            call.turn.set_result(False)
        elif obstacle is not None and (self._reachability.is_failed or self._has_waited(call)):
            self._refuse(call, EngineUnavailableError(obstacle), "engine_unavailable")

    def _has_waited(self, call: QueuedCall) -> bool:
        now, since_s = self._clock(), call.unreachable_since_s
        if since_s is None:
            lost_since_s = self._reachability.lost_since_s
            since_s = max(call.since_s, now if lost_since_s is None else lost_since_s)
        return now - since_s >= self._recovery_wait_s

    def _refuse(self, call: QueuedCall, error: Exception, reason: str) -> None:
        assert call.turn is not None
        self._on_refusal(reason)
        del self._queued[call.arrival.call_id]
        call.turn.set_exception(error)

    def _send(self, call: QueuedCall, now: float) -> None:
        assert call.turn is not None
        self._note_wait(call, self._ordering.go(call.arrival.call_id, now))
        self._in_flight += 1
        if self.busy_since_s is None:
            self.busy_since_s = now
        call.restarts = self._reachability.restarts
        call.is_trial = self._reachability.is_trial
        if not call.turn.done():
            call.turn.set_result(True)

    def _note_wait(self, call: QueuedCall, wait: Wait) -> None:
        call.note(wait)
        self._wait_s.observe(wait.wait_s)
