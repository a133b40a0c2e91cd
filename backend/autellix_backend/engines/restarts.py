"""When a dead engine is restarted: exponential back-off, and a limit within a window.

Pure and without jitter: one gateway restarts one engine, so there is no herd to spread.
"""

from __future__ import annotations

from collections import deque

MAX_DELAY_S = 60.0


class RestartPlan:
    """The restarts of one engine; time is an argument."""

    def __init__(self, *, limit: int, window_s: float, first_delay_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._first_delay_s = first_delay_s
        self._recent_s: deque[float] = deque()

    def next_delay_s(self, now: float) -> float | None:
        """Plan a restart and return the delay before it; None if there were too many lately.

        The first within the window is due at once, each further one after twice the previous delay.
        """
        while self._recent_s and now - self._recent_s[0] >= self._window_s:
            self._recent_s.popleft()
        count = len(self._recent_s)
        if count >= self._limit:
            return None
        self._recent_s.append(now)
        return 0.0 if count == 0 else min(MAX_DELAY_S, self._first_delay_s * 2.0 ** (count - 1))
