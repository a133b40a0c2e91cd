"""The circuit breaker of one engine: after consecutive failures it gets no calls for a while.

closed ──(`failures` in a row)──► open ──(`cooldown_s` later)──► half-open ──success──► closed
                                   ▲                                │
                                   └──────────────failure───────────┘

Half-open admits one call, whose outcome decides. Pure: time is an argument.
"""

from __future__ import annotations

import enum
import math


class BreakerState(enum.Enum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Counts failures to reach one engine and admits calls."""

    def __init__(self, *, failures: int, cooldown_s: float) -> None:
        self._limit = failures
        self._cooldown_s = cooldown_s
        self._failed = 0
        self._opened_s = -math.inf
        self.state = BreakerState.CLOSED

    def admit(self, now: float) -> bool:
        """Return whether a call may go; it must then report succeed(), fail() or abandon()."""
        if self.state is BreakerState.OPEN and now >= self.retry_at_s:
            self.state = BreakerState.HALF_OPEN
            return True
        return self.state is BreakerState.CLOSED

    @property
    def retry_at_s(self) -> float:
        """Return when an open breaker admits a call."""
        return self._opened_s + self._cooldown_s

    def succeed(self) -> None:
        """Note that the engine was reached."""
        self._failed = 0
        self.state = BreakerState.CLOSED

    def fail(self, now: float) -> None:
        """Note that the engine could not be reached."""
        self._failed += 1
        if self.state is BreakerState.HALF_OPEN or self._failed >= self._limit:
            self.state = BreakerState.OPEN
            self._opened_s = now

    def abandon(self) -> None:
        """Note that a call left before it was known whether the engine can be reached."""
        if self.state is BreakerState.HALF_OPEN:
            # The cool-down is over: the next call tries.
            self.state = BreakerState.OPEN
