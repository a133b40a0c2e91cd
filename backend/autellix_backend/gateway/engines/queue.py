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
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.engines.breaker import Breaker, BreakerState
from autellix_backend.engines.supervisor import EngineState, Supervisor
from autellix_backend.gateway.engines.ordering import Ordering, Wait
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError
from autellix_backend.observe.settled_call import Usage
from autellix_backend.reports.snapshot import AdmissionSnapshot

ESTIMATED = "estimated by the gateway: this engine does not report its memory"


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call in the queues of the engines that it is sent to, one after the other."""

    arrival: Arrival
    wait_s: float = 0.0
    """Its time in queues, over all attempts."""
    inactive_s: float = 0.0
    """The part of it in which its program was inactive."""
    counted_wait_s: float = 0.0
    """The part of its time in queues that counts for its program's wait/service ratio."""
    unreachable_since_s: float | None = None
    """Since when it has found no connection to an engine."""
    since_s: float = 0.0
    """When it entered its present queue."""
    ordering: Ordering | None = None
    """The order that it entered there."""
    turn: asyncio.Future[bool] | None = None
    """Done when it may be sent (True) or has to move to another engine's queue (False)."""
    restarts: int = 0
    """How often the engine that it was sent to had been restarted."""
    is_trial: bool = False
    """Whether the circuit breaker waits for its outcome."""
    usage: Usage | None = None
    """The tokens that its answer states, once it is settled; read only where they are needed."""


class EngineQueue:
    """The calls that one gateway has for one engine, queued or sent."""

    def __init__(
        self,
        engine: str,
        ordering: Ordering,
        supervisor: Supervisor,
        breaker: Breaker,
        *,
        full: str,
        recovery_wait_s: float,
        wait_s: Histogram,
        on_refusal: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """Create an empty queue.

        Args:
            engine: The engine's name.
            ordering: The order of calls.
            supervisor: Watches the engine.
            breaker: Counts the calls that cannot reach it.
            full: Why a call waits if the engine can be reached.
            recovery_wait_s: How long a call waits for an engine that is down.
            wait_s: Observes the time that calls spend in the queue.
            on_refusal: Is called with the reason of each refusal.
            clock: The clock of arrivals.
        """
        self._engine = engine
        self._ordering = ordering
        self._supervisor = supervisor
        self._breaker = breaker
        self._full = full
        self._recovery_wait_s = recovery_wait_s
        self._wait_s = wait_s
        self._on_refusal = on_refusal
        self._clock = clock
        self._queued: dict[str, QueuedCall] = {}
        self._in_flight = 0
        # Since when calls cannot be sent, as of the last pump().
        self._lost_since_s: float | None = None
        self.busy_since_s: float | None = None
        """Since when the engine has been busy with calls; None while it has none."""
        self._is_shutting_down = False
        self.is_draining = False
        """Whether queued calls should move to other engines."""

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def is_breaker_closed(self) -> bool:
        """Whether the circuit breaker passes every call."""
        return self._breaker.state is BreakerState.CLOSED

    def can_send(self) -> bool:
        """Return whether a call that arrives now may be sent, as far as that is known."""
        is_blocked = not self.is_breaker_closed and self._clock() < self._breaker.retry_at_s
        return self._supervisor.is_up and not is_blocked

    def why_queued(self, key: str) -> str | None:
        """Return why a call waits here, None if it does not."""
        if key not in self._queued:
            return None
        inactive = self._ordering.inactive(key)
        return self._obstacle() or (self._full if inactive is None else f"{inactive.text} ({ESTIMATED})")

    def working_set(self) -> AdmissionSnapshot | None:
        """Return the estimated working set of an engine that does not report it; None without admission."""
        return self._ordering.working_set()

    def memory(self) -> MemoryReport | None:
        """Return that estimate as the balancer needs it; None without admission."""
        return self._ordering.memory(self._clock())

    @property
    def has_policy(self) -> bool:
        """Whether the scheduler's policy orders the calls here, because the engine cannot."""
        return self._ordering.has_policy

    def use(self, ordering: Ordering) -> None:
        """Order queued calls, and those that come, in another way; sent calls leave by the way they came."""
        now = self._clock()
        for key, call in self._queued.items():
            if (wait := self._ordering.leave(key, now)) is not None:
                self._note_wait(call, wait)
            call.ordering = ordering
            ordering.enter(call.arrival, now)
        self._ordering = ordering
        self.pump()

    def on_program_ended(self, program_id: str) -> None:
        """Free what is kept for a program."""
        self._ordering.on_program_ended(program_id, self._clock())
        self.pump()

    @property
    def is_blocked(self) -> bool:
        """Whether calls are queued that wait for more than a slot; they have to be judged."""
        must_leave = self._is_shutting_down or self.is_draining
        return bool(self._queued) and (must_leave or self._obstacle() is not None)

    def enter(self, call: QueuedCall) -> None:
        """Queue a call; it has to leave() in the end."""
        call.since_s = self._clock()
        call.turn = asyncio.get_running_loop().create_future()
        call.ordering = self._ordering
        call.ordering.enter(call.arrival, call.since_s)
        self._queued[call.arrival.call_id] = call
        self.pump()

    def leave(self, call: QueuedCall) -> None:
        """Remove a queued or sent call, and free its slot."""
        self._queued.pop(call.arrival.call_id, None)
        assert call.ordering is not None
        if (wait := call.ordering.leave(call.arrival.call_id, self._clock(), call.usage)) is not None:
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
            self._breaker.abandon()
        self.pump()

    def on_reached(self, call: QueuedCall) -> None:
        """Note that the engine answered a call."""
        call.is_trial = False
        call.unreachable_since_s = None
        self._breaker.succeed()
        self.pump()

    def on_unreached(self, call: QueuedCall) -> None:
        """Note that a call found no connection to the engine."""
        call.is_trial = False
        now = self._clock()
        if call.unreachable_since_s is None:
            call.unreachable_since_s = now
        self._breaker.fail(now)
        self._supervisor.suspect()
        self.pump()

    async def has_died(self, call: QueuedCall) -> bool:
        """Probe whether the engine process that a call was sent to is gone; another may have replaced it."""
        return call.restarts != self._supervisor.restarts or not await self._supervisor.check()

    def shut_down(self) -> None:
        """Refuse queued calls, now and from now on; the ones at the engine go on."""
        self._is_shutting_down = True
        self.judge(can_move=False)

    def pump(self) -> None:
        """Send the calls that may be admitted."""
        now = self._clock()
        is_open = self._supervisor.is_up and not self._is_shutting_down
        while self._queued and is_open:
            key = self._ordering.next(now)
            if key is None or not self._breaker.admit(now):
                break
            self._send(self._queued.pop(key), now)
        if self._obstacle() is None:
            self._lost_since_s = None
        elif self._lost_since_s is None:
            self._lost_since_s = now

    def judge(self, *, can_move: bool) -> None:
        """Move or refuse the queued calls that wait in vain; `can_move` if another engine accepts calls."""
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
        obstacle = self._obstacle()
        is_failed = self._supervisor.state is EngineState.FAILED
        if can_move and (obstacle is not None or self.is_draining):
            del self._queued[call.arrival.call_id]
            call.turn.set_result(False)
        elif obstacle is not None and (is_failed or self._has_waited(call)):
            self._refuse(call, EngineUnavailableError(obstacle), "engine_unavailable")

    def _obstacle(self) -> str | None:
        """Return why no call may be sent, None if calls may."""
        if not self._supervisor.is_up:
            return f"engine {self._engine} is not ready: {self._supervisor.problem}"
        if not self.is_breaker_closed:
            return f"engine {self._engine} could not be reached, several times in a row"
        return None

    def _has_waited(self, call: QueuedCall) -> bool:
        now, since_s = self._clock(), call.unreachable_since_s
        if since_s is None:
            since_s = max(call.since_s, now if self._lost_since_s is None else self._lost_since_s)
        return now - since_s >= self._recovery_wait_s

    def _refuse(self, call: QueuedCall, error: Exception, reason: str) -> None:
        assert call.turn is not None
        self._on_refusal(reason)
        del self._queued[call.arrival.call_id]
        call.turn.set_exception(error)

    def _send(self, call: QueuedCall, now: float) -> None:
        assert call.turn is not None
        self._note_wait(call, self._ordering.send(call.arrival.call_id, now))
        self._in_flight += 1
        if self.busy_since_s is None:
            self.busy_since_s = now
        call.restarts = self._supervisor.restarts
        call.is_trial = self._breaker.state is BreakerState.HALF_OPEN
        if not call.turn.done():
            call.turn.set_result(True)

    def _note_wait(self, call: QueuedCall, wait: Wait) -> None:
        call.wait_s += wait.wait_s
        call.inactive_s += wait.inactive_s
        call.counted_wait_s += wait.counted_s
        self._wait_s.observe(wait.wait_s)
