"""The way into the engine: calls wait here while it is full, down or being restarted.

A call is admitted (within bounds on calls and bytes), waits for its turn, holds a slot while the engine has
it, and leaves. It waits for the engine's return for `gateway.recovery_wait_s` at most, for a slot as long as
its client does. When the gateway ends, waiting calls are refused at once: they have cost nothing yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from autellix_backend.core.arrival import Arrival
from autellix_backend.engines.breaker import Breaker, BreakerState
from autellix_backend.engines.supervisor import EngineState, Supervisor
from autellix_backend.gateway.calls.registry import OpenCall
from autellix_backend.gateway.engines.ordering import Ordering, Wait
from autellix_backend.gateway.errors import (
    EngineUnavailableError,
    GatewayError,
    OverloadedError,
    ShuttingDownError,
)
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import EngineSettings

TICK_S = 0.2
"""How often calls that wait for the engine's return are looked at."""


@dataclass(slots=True, eq=False)
class Admission:
    """A call's part of the bounds, until the first byte of its answer; release() may be called twice."""

    size_bytes: int
    free: Callable[[Admission], None]
    is_released: bool = False

    def release(self) -> None:
        """Make room for others."""
        if not self.is_released:
            self.is_released = True
            self.free(self)


@dataclass(slots=True, eq=False)
class Slot:
    """A call's place in the line and, once it has its turn, at the engine."""

    call: OpenCall
    since_s: float
    turn: asyncio.Future[None]
    restarts: int = 0
    """How often the engine that it was sent to had been restarted."""
    is_trial: bool = False
    """Whether the breaker wants to learn from it."""
    report: Callable[[bool], None] = field(default=lambda _: None)

    def reached(self) -> None:
        """Note that the engine answered."""
        self.report(True)

    def unreached(self) -> None:
        """Note that no connection to the engine came about."""
        self.report(False)


class ElsewhereError(Exception):
    """A call need not wait here: another engine takes it."""


class EngineQueue:
    """The calls of one gateway before one engine."""

    def __init__(
        self,
        line: Ordering,
        supervisor: Supervisor,
        settings: EngineSettings,
        metrics: GatewayMetrics,
        *,
        engine: str,
        recovery_wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._line = line
        self._supervisor = supervisor
        self._settings = settings
        self._metrics = metrics
        self._engine = engine
        self._recovery_wait_s = recovery_wait_s
        self._clock = clock
        self._breaker = Breaker(failures=settings.breaker_failures, cooldown_s=settings.breaker_cooldown_s)
        self._held_s = metrics.dispatch.held_s.labels(engine)
        self._held: dict[str, Slot] = {}
        self._unanswered_calls = 0
        self._unanswered_bytes = 0
        self._lost_s: float | None = None
        """Since when the engine cannot be sent calls; None while it can."""
        self._in_flight = 0
        self.busy_since_s: float | None = None
        """Since when the engine has had calls without a pause; None while it has none."""
        self._timer: asyncio.TimerHandle | None = None
        self.is_draining = False
        """Whether the gateway ends, and takes no calls."""
        self._is_retired = False
        self.may_leave: Callable[[], bool] = lambda: False
        """Says whether another engine would take a call that waits here."""
        supervisor.subscribe(lambda _: self._pump())

    def measure(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.dispatch.set_queue(
            self._engine,
            held_calls=len(self._held),
            unanswered_calls=self._unanswered_calls,
            unanswered_bytes=self._unanswered_bytes,
            is_breaker_open=self._breaker.state is not BreakerState.CLOSED,
        )

    @property
    def held_count(self) -> int:
        """Return the number of calls that wait here."""
        return len(self._held)

    def hold(self, call: OpenCall) -> str | None:
        """Say why a call waits here; None if it does not."""
        return self._reason() if call.key in self._held else None

    def _reason(self) -> str:
        return self._obstacle() or f"all {self._settings.max_in_flight} slots of {self._engine} are taken"

    def admit(self, size_bytes: int) -> Admission:
        """Take in a call with a body of this size.

        Raises:
            ShuttingDownError: if the gateway ends.
            OverloadedError: if it would exceed a bound.
        """
        if self.is_draining:
            raise self._refusal(ShuttingDownError(), "draining")
        if self._unanswered_calls >= self._settings.max_waiting_calls:
            limit = f"{self._settings.max_waiting_calls} calls (engine.max_waiting_calls)"
            raise self._refusal(OverloadedError(self._engine, limit), "queue_calls")
        if not self.has_room(size_bytes):
            limit = f"{self._settings.max_waiting_bytes} bytes (engine.max_waiting_bytes)"
            raise self._refusal(OverloadedError(self._engine, limit), "queue_bytes")
        return self.take(size_bytes)

    def has_room(self, size_bytes: int) -> bool:
        """Say whether a call with a body of this size is within the bounds."""
        has_bytes = self._unanswered_bytes + size_bytes <= self._settings.max_waiting_bytes
        return has_bytes and self._unanswered_calls < self._settings.max_waiting_calls

    def take(self, size_bytes: int) -> Admission:
        """Take in a call whatever the bounds: another engine let it in before."""
        self._unanswered_calls += 1
        self._unanswered_bytes += size_bytes
        return Admission(size_bytes, self._free)

    @contextlib.asynccontextmanager
    async def slot(self, call: OpenCall) -> AsyncIterator[Slot]:
        """Wait for a call's turn, and hold a slot of the engine inside.

        Raises:
            EngineUnavailableError: if the engine is gone for good, or does not come back in time.
            ShuttingDownError: if the gateway ends meanwhile.
            ElsewhereError: if it is to wait no longer, because another engine takes calls and this does not.
        """
        now = self._clock()
        slot = Slot(call, now, asyncio.get_running_loop().create_future())
        slot.report = lambda is_reached: self._report(slot, is_reached=is_reached)
        self._line.enter(_arrival(call), now)
        self._held[call.key] = slot
        try:
            self._pump()
            if not slot.turn.done():
                self._judge(slot)
            await slot.turn
            yield slot
        finally:
            self._leave(slot)

    async def has_died(self, slot: Slot) -> bool:
        """Look whether the engine that has, or had, a call is gone; another may have come since."""
        return slot.restarts != self._supervisor.restarts or not await self._supervisor.check()

    def count_repeat(self) -> None:
        """Note that a call is sent again, to the engine that comes after the one that died under it."""
        self._metrics.dispatch.redispatches.labels(self._engine).inc()

    def can_send(self) -> bool:
        """Say whether a call that came at this moment might go to the engine, as far as that is known."""
        is_blocked = (
            self._breaker.state is not BreakerState.CLOSED and self._clock() < self._breaker.retry_at_s
        )
        return self._supervisor.is_up and not is_blocked

    def retire(self) -> None:
        """Have calls that wait here go elsewhere, if they can; the ones at the engine go on."""
        self._is_retired = True
        for slot in list(self._held.values()):
            self._judge(slot)

    def reinstate(self) -> None:
        """Let calls wait here again."""
        self._is_retired = False

    def drain(self) -> None:
        """Take no more calls and refuse those that wait; the ones at the engine go on."""
        self.is_draining = True
        self._pump()

    def _free(self, admission: Admission) -> None:
        self._unanswered_calls -= 1
        self._unanswered_bytes -= admission.size_bytes

    def _refusal(self, error: GatewayError, reason: str) -> GatewayError:
        self._metrics.refusals.labels("", reason).inc()
        return error

    def _leave(self, slot: Slot) -> None:
        now = self._clock()
        self._held.pop(slot.call.key, None)
        if (wait := self._line.leave(slot.call.key, now)) is not None:
            self._note_wait(slot.call, wait)
        else:
            self._in_flight -= 1
            if not self._in_flight:
                self.busy_since_s = None
        if slot.turn.done() and not slot.turn.cancelled():
            # A refusal that the call, cancelled meanwhile, did not come to see.
            slot.turn.exception()
        if slot.is_trial:
            self._breaker.abandon()
        self._pump()

    def _note_wait(self, call: OpenCall, wait: Wait) -> None:
        call.held_s += wait.wait_s
        call.held_counted_s += wait.counted_s
        self._held_s.observe(wait.wait_s)

    def _report(self, slot: Slot, *, is_reached: bool) -> None:
        slot.is_trial = False
        if is_reached:
            self._breaker.succeed()
            slot.call.lost_s = None
        else:
            self._breaker.fail(self._clock())
            self._supervisor.suspect()
            if slot.call.lost_s is None:
                slot.call.lost_s = self._clock()
        self._pump()

    def _pump(self) -> None:
        """Let those go whose turn it is; refuse all if there is nothing to wait for."""
        now = self._clock()
        if self.is_draining or self._supervisor.state is EngineState.FAILED:
            for slot in list(self._held.values()):
                self._judge(slot)
        while self._held and self._supervisor.is_up:
            key = self._line.next(now)
            if key is None or not self._breaker.admit(now):
                break
            slot = self._held.pop(key)
            self._note_wait(slot.call, self._line.go(key, now))
            self._in_flight += 1
            if self.busy_since_s is None:
                self.busy_since_s = now
            slot.restarts = self._supervisor.restarts
            slot.is_trial = self._breaker.state is BreakerState.HALF_OPEN
            slot.turn.set_result(None)
        self._follow_up(now)

    def _follow_up(self, now: float) -> None:
        if self._supervisor.is_up and self._breaker.state is BreakerState.CLOSED:
            self._lost_s = None
        elif self._lost_s is None:
            self._lost_s = now
        if self._held and self._lost_s is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._pump()
        for slot in list(self._held.values()):
            self._judge(slot)

    def _judge(self, slot: Slot) -> None:
        """Refuse a waiting call if it has nothing to wait for, or has waited long enough."""
        if slot.turn.done():
            return
        if self.is_draining:
            self._refuse(slot, self._refusal(ShuttingDownError(), "draining"))
            return
        obstacle = self._obstacle()
        if (obstacle is not None or self._is_retired) and self.may_leave():
            self._refuse(slot, ElsewhereError())
        elif obstacle is not None:
            self._judge_wait(slot, obstacle)

    def _judge_wait(self, slot: Slot, obstacle: str) -> None:
        now = self._clock()
        since_s = slot.call.lost_s
        if since_s is None:
            since_s = max(slot.since_s, now if self._lost_s is None else self._lost_s)
        has_waited = now - since_s >= self._recovery_wait_s
        if self._supervisor.state is EngineState.FAILED or has_waited:
            self._refuse(slot, self._refusal(EngineUnavailableError(obstacle), "engine_unavailable"))

    def _refuse(self, slot: Slot, error: Exception) -> None:
        del self._held[slot.call.key]
        slot.turn.set_exception(error)

    def _obstacle(self) -> str | None:
        """Say why no call may go, None if the engine takes calls."""
        if not self._supervisor.is_up:
            return f"engine {self._engine} is not ready: {self._supervisor.problem}"
        if self._breaker.state is not BreakerState.CLOSED:
            return f"engine {self._engine} could not be reached, several times in a row"
        return None


def _arrival(call: OpenCall) -> Arrival:
    return Arrival(
        call.key,
        call.identity.program,
        thread_id=call.identity.thread,
        tenant=call.tenant.name,
        weight=call.tenant.weight,
        service_s=call.inherited.program_service_s,
        wait_s=call.inherited.wait_s,
        inherited_s=call.inherited.service_s,
        expected_s=call.inherited.expected_s,
    )
