"""Rounds of the event loop: what clients bring gets a bounded part of each, and the clients take turns.

One event loop serves all tenants, and a round of it lasts as long as everything that is ready. A client can
open connections, send bytes and leave in any number at once; if one round processed all of it, every other
request would wait that long at each of its steps. Many short rounds cost a sixth more processor time per call
than few long ones, so an owner that is alone has longer rounds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

ROUND_S = 0.00025
"""The part of a round; a call passes through about ten rounds."""
ALONE_ROUND_S = 0.002
"""The part of a round while one owner is alone; another's first call waits this long at most."""
SHARED_S = 1.0
"""How long after another owner's action, or request, an owner is not yet alone."""
RENEWAL_S = 0.001
"""While no action waits a round is not seen to end: its time is renewed after so long."""
SHARE = 0.125
"""The part of a longer round, so that waiting clients advance also when each round takes long."""
ROUND_OWNERS = 4
"""So many owners have an action in a round, even if the first uses up its time."""
FOLLOW_UP_S = 0.00015
"""What an opened or a closed connection costs in the rounds after its own."""
REQUEST_S = 0.0001
"""What a request costs in those of its first steps."""


class Solitude:
    """Notices whether the only owner at work is alone."""

    def __init__(self) -> None:
        self._last = ""
        self._shared_until_s = 0.0

    def is_alone(self, owner: str, now_s: float) -> bool:
        """Note that an owner does something at a time in seconds; return whether no other has for a while."""
        if owner != self._last:
            self._last, self._shared_until_s = owner, now_s + SHARED_S
        return now_s > self._shared_until_s


class Rounds:
    """Runs actions of owners, each at once while its round has time left, else in a later round."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """By owner, the owner whose turn is next first."""
        self._is_scheduled = False
        self._solitude = Solitude()
        self._round_s = ROUND_S
        self._left_s = ROUND_S
        """Of this round."""
        self._renewed_s = time.perf_counter()
        self._end_s = 0.0
        """When the running action has used up the time of its round."""

    @property
    def is_over(self) -> bool:
        """Whether the running action has used up its round; what it has left to do must wait()."""
        return time.perf_counter() >= self._end_s

    def run(self, owner: str, action: Callable[[], None]) -> None:
        """Run an action now, or behind those that wait."""
        now_s = time.perf_counter()
        self._round_s = ALONE_ROUND_S if self._solitude.is_alone(owner, now_s) else ROUND_S
        if self._waiting:
            self.wait(owner, action)
            return
        if now_s >= self._renewed_s + RENEWAL_S:
            self._renewed_s, self._left_s = now_s, self._round_s
        if self._left_s > 0:
            self._do(action)
        else:
            self.wait(owner, action)

    def wait(self, owner: str, action: Callable[[], None]) -> None:
        """Run an action in a later round, when its owner has its turn."""
        self._waiting.setdefault(owner, deque()).append(action)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._renewed_s = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._run_waiting)

    def charge(self, cost_s: float) -> None:
        """Take time from this round for what an action will cost in later ones."""
        self._left_s -= cost_s

    def flush(self) -> None:
        """Run all actions that wait."""
        while self._waiting:
            self._do(self._next())

    def _run_waiting(self) -> None:
        last_s, self._renewed_s = self._renewed_s, time.perf_counter()
        self._left_s = max(self._round_s, SHARE * (self._renewed_s - last_s))
        try:
            # An action may wait again, and has its next turn in a later round.
            owners = min(ROUND_OWNERS, len(self._waiting))
            for number in range(sum(map(len, self._waiting.values()))):
                if not self._waiting or (self._left_s <= 0 and number >= owners):
                    break
                self._do(self._next())
        finally:
            # The fault of one action, which the event loop logs, must not stop those of others.
            self._is_scheduled = bool(self._waiting)
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self._run_waiting)

    def _next(self) -> Callable[[], None]:
        owner, actions = next(iter(self._waiting.items()))
        del self._waiting[owner]
        action = actions.popleft()
        if actions:
            self._waiting[owner] = actions
        return action

    def _do(self, action: Callable[[], None]) -> None:
        began_s = time.perf_counter()
        self._end_s = began_s + self._left_s
        action()
        self._left_s -= time.perf_counter() - began_s
