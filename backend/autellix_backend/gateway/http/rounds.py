"""Rounds of the event loop: what clients bring gets a bounded part of each, and the clients take turns.

One event loop serves all tenants, and a round of it lasts as long as everything that is ready. A client can
open connections, send bytes and leave in any number at once; if one round processed all of it, every other
request would wait that long at each of its steps.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

ROUND_S = 0.00025
"""The part of a round; a call passes through about ten rounds."""
SHARE = 0.25
"""The part of a longer round, so that waiting clients advance also when each round takes long."""
FOLLOW_UP_S = 0.00005
"""What an opened connection, a request or a closed connection costs in the rounds after its own."""


class Rounds:
    """Runs actions of owners, each at once while its round has time left, else in a later round."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """By owner, the owner whose turn is next first."""
        self._is_scheduled = False
        self._round = -1.0
        """The round to which the time left belongs, by uvloop's clock, which stands still within a round."""
        self._left_s = 0.0
        self._end_s = 0.0
        """When the running action has used up the time of its round."""
        self._began_s = 0.0
        """When the last round in which actions waited began."""

    @property
    def is_over(self) -> bool:
        """Whether the running action has used up its round; what it has left to do must wait()."""
        return time.perf_counter() >= self._end_s

    def run(self, owner: str, action: Callable[[], None]) -> None:
        """Run an action now, or behind those that wait."""
        round_now = asyncio.get_running_loop().time()
        if round_now != self._round:
            self._round, self._left_s = round_now, ROUND_S
        if self._left_s > 0 and not self._waiting:
            self._do(action)
        else:
            self.wait(owner, action)

    def wait(self, owner: str, action: Callable[[], None]) -> None:
        """Run an action in a later round, when its owner has its turn."""
        self._waiting.setdefault(owner, deque()).append(action)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._began_s = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._run_waiting)

    def charge(self, cost_s: float) -> None:
        """Take time from this round for what an action will cost in later ones."""
        self._left_s -= cost_s

    def flush(self) -> None:
        """Run all actions that wait."""
        while self._waiting:
            self._do(self._next())

    def _run_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, self._began_s = self._began_s, time.perf_counter()
        self._round, self._left_s = loop.time(), max(ROUND_S, SHARE * (self._began_s - began_s))
        # An action may wait again, and has its next turn in a later round.
        for _ in range(sum(map(len, self._waiting.values()))):
            if self._left_s <= 0 or not self._waiting:
                break
            self._do(self._next())
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop.call_soon(self._run_waiting)

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
