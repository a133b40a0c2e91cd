"""Whether one engine can be sent calls, by its supervisor and its circuit breaker."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.engines.breaker import Breaker, BreakerState
from autellix_backend.engines.supervisor import EngineState, Supervisor


class Reachability:
    """Joins what the supervisor sees of an engine with what calls experience on the way to it."""

    def __init__(
        self, engine: str, supervisor: Supervisor, breaker: Breaker, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._supervisor = supervisor
        self._breaker = breaker
        self._clock = clock
        self.lost_since_s: float | None = None
        """Since when calls cannot be sent, as of the last refresh(); None while they can."""

    @property
    def is_up(self) -> bool:
        """Whether the supervisor lets calls go to the engine."""
        return self._supervisor.is_up

    @property
    def is_failed(self) -> bool:
        """Whether the engine is gone for good."""
        return self._supervisor.state is EngineState.FAILED

    @property
    def is_breaker_closed(self) -> bool:
        """Whether the circuit breaker passes every call."""
        return self._breaker.state is BreakerState.CLOSED

    @property
    def is_trial(self) -> bool:
        """Whether the breaker waits for the outcome of a single call."""
        return self._breaker.state is BreakerState.HALF_OPEN

    @property
    def restarts(self) -> int:
        """Return how often the engine was restarted."""
        return self._supervisor.restarts

    def can_send(self) -> bool:
        """Return whether a call that arrives now may be sent, as far as that is known."""
        is_blocked = not self.is_breaker_closed and self._clock() < self._breaker.retry_at_s
        return self._supervisor.is_up and not is_blocked

    def obstacle(self) -> str | None:
        """Return why no call may be sent, None if calls may."""
        if not self._supervisor.is_up:
            return f"engine {self._engine} is not ready: {self._supervisor.problem}"
        if not self.is_breaker_closed:
            return f"engine {self._engine} could not be reached, several times in a row"
        return None

    def refresh(self) -> None:
        """Note since when calls cannot be sent."""
        if self._supervisor.is_up and self.is_breaker_closed:
            self.lost_since_s = None
        elif self.lost_since_s is None:
            self.lost_since_s = self._clock()

    def pass_breaker(self, now: float) -> bool:
        """Return whether the breaker passes a call, whose outcome must be reported."""
        return self._breaker.admit(now)

    def on_reached(self) -> None:
        """Note that the engine answered a call."""
        self._breaker.succeed()

    def on_unreached(self) -> None:
        """Note that a call found no connection to the engine."""
        self._breaker.fail(self._clock())
        self._supervisor.suspect()

    def on_trial_abandoned(self) -> None:
        """Note that the breaker's single call left before its outcome was known."""
        self._breaker.abandon()

    async def is_same_process(self, restarts: int) -> bool:
        """Probe whether the engine still runs that had been restarted this often."""
        return restarts == self._supervisor.restarts and await self._supervisor.check()
