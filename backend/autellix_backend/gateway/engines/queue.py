"""The queue before one engine: calls wait here while the engine is full, down or being restarted.

A queued call waits for its turn, holds a slot while the engine has it, and leaves. It waits for a slot as
long as its client does, and for an engine that is down `gateway.recovery_wait_s` at most. If another engine
can take it meanwhile, it moves there. When the gateway shuts down, queued calls are refused at once, because
they have cost nothing yet.

ArrivalOrdering    first come, first served, without a bound on calls at the engine, which orders them itself
PolicyOrdering     a bounded number of calls at the engine; the scheduler's own machine picks the next one

The orderings are pure: time is an argument, and nothing waits there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Histogram

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.engines.breaker import Breaker, BreakerState
from autellix_backend.engines.supervisor import EngineState, Supervisor
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """How long a call was queued."""

    wait_s: float
    counted_s: float
    """The part that counts for its program's wait/service ratio: the time since its last promotion."""


class ArrivalOrdering:
    """First come, first served, without a bound on sent calls."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}

    def enter(self, arrival: Arrival, now: float) -> None:
        """Append the call, whose id must not be in use."""
        self._waiting[arrival.call_id] = now

    def next(self, now: float) -> str | None:  # noqa: ARG002
        """Return the first; None if none is queued."""
        return next(iter(self._waiting), None)

    def send(self, key: str, now: float) -> Wait:
        """Remove the call; return how long it waited."""
        waited_s = now - self._waiting.pop(key)
        return Wait(wait_s=waited_s, counted_s=waited_s)

    def leave(self, key: str, now: float) -> Wait | None:
        """Remove the call if it is still queued; return how long it waited."""
        return self.send(key, now) if key in self._waiting else None


class PolicyOrdering:
    """Algorithm 1 over the calls at the gateway, for an engine that cannot order them.

    A sent call is never preempted. It is charged the time that it holds its slot, because the engine's steps
    are unknown here. The machine decides the order, the tenants' shares and the promotion of starving calls.
    """

    def __init__(self, config: SchedulerConfig, slots: int) -> None:
        self._machine = Machine(config)
        self._slots = slots
        self._charged_until_s: dict[str, float] = {}
        """By sent call."""

    def enter(self, arrival: Arrival, now: float) -> None:
        """Queue the call by its program's attained service."""
        self._machine.arrive(arrival, now)

    def next(self, now: float) -> str | None:
        """Return the first queued call in the machine's order, if a slot is free."""
        if len(self._charged_until_s) >= self._slots:
            return None
        self._charge(now)
        self._machine.tick(now)
        return next((call.call_id for call in self._machine if not call.is_running), None)

    def send(self, key: str, now: float) -> Wait:
        """Give the call a slot; return how long it waited."""
        call = self._machine.call(key)
        wait = Wait(wait_s=call.wait_at(now), counted_s=call.unpaid_wait_at(now))
        self._machine.start(key, now)
        self._charged_until_s[key] = now
        return wait

    def leave(self, key: str, now: float) -> Wait | None:
        """Free the call's slot, or return how long it waited; drop its program with its last call here."""
        self._charge(now)
        was_sent = self._charged_until_s.pop(key, None) is not None
        record = self._machine.finish(key, now) if was_sent else self._machine.abort(key, now)
        if not self._machine.table[record.program_id].active_calls:
            self._machine.end_program(record.program_id, now)
        return None if was_sent else Wait(wait_s=record.wait_s, counted_s=record.table_wait_s)

    def check(self) -> None:
        """Assert the invariants."""
        self._machine.check()
        running = {call.call_id for call in self._machine if call.is_running}
        assert running == self._charged_until_s.keys()
        assert len(running) <= self._slots
        assert all(program.active_calls for program in self._machine.table.programs())

    def _charge(self, now: float) -> None:
        for key, until_s in self._charged_until_s.items():
            self._machine.charge(key, now - until_s, now)
            self._charged_until_s[key] = now


Ordering = ArrivalOrdering | PolicyOrdering
"""The queued calls of an engine and those that were sent to it."""


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
    """Done when it may be sent (True) or has to move to another engine's queue (False)."""
    restarts: int = 0
    """How often the engine that it was sent to had been restarted."""
    is_trial: bool = False
    """Whether the circuit breaker waits for its outcome."""


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
        return (self._obstacle() or self._full) if key in self._queued else None

    @property
    def is_blocked(self) -> bool:
        """Whether calls are queued that wait for more than a slot; they have to be judged."""
        must_leave = self._is_shutting_down or self.is_draining
        return bool(self._queued) and (must_leave or self._obstacle() is not None)

    def enter(self, call: QueuedCall) -> None:
        """Queue a call; it has to leave() in the end."""
        call.since_s = self._clock()
        call.turn = asyncio.get_running_loop().create_future()
        self._ordering.enter(call.arrival, call.since_s)
        self._queued[call.arrival.call_id] = call
        self.pump()

    def leave(self, call: QueuedCall) -> None:
        """Remove a queued or sent call, and free its slot."""
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
        call.counted_wait_s += wait.counted_s
        self._wait_s.observe(wait.wait_s)
