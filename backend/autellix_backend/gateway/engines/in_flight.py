"""The bound on calls in flight at an engine without our scheduler; further calls wait in the gateway.

Without a bound the engine takes every call and orders its queue itself: the gateway's policy has no effect.
The bound is `engine.max_in_flight`, or learned from the queue lengths in a vLLM server's metrics.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from autellix_backend.engines.base import Engine
from autellix_backend.engines.probe import QueueLengths
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.engines.ordering import states_queue
from autellix_backend.gateway.engines.queue import EngineQueue

PERIOD_S = 0.5
"""How often a busy engine's queue lengths are read: vLLM renders its metrics in a few milliseconds."""
SPARE_SHARE = 16
"""Running calls for each of which one may wait in the engine: it takes a slot as soon as that is free, which
the gateway learns a round trip later."""
READINGS = 4
"""The readings after which a bound falls."""
MIN_SPARE = 2
"""The calls that may wait there at least: in a small batch several calls often end in one step."""
OTHERS_SHARE = 2
"""Other clients' calls at the engine per call of ours above which there is no bound: they would overtake the
calls that wait here."""


class LearnedBound:
    """A bound on calls in flight that keeps the engine's batch full and its queue short. Pure.

    A bound that is too low leaves slots idle; one that is too high only leaves the order of some calls to the
    engine. So the bound falls only by what waited in the engine at each of several readings, without the
    spare calls, and not while more and more calls run. It grows, faster at each reading, while none waits
    there and calls wait here. The slower the way to the engine, the more calls it keeps there.
    """

    def __init__(self) -> None:
        self.calls = math.inf
        """The calls that may be in flight; infinity as long as nothing has waited in the engine."""
        self.is_shared = False
        """Whether it is infinite because most calls at the engine are not ours."""
        self._growth = 1
        self._last: list[QueueLengths] = []
        """The last readings."""

    @property
    def running(self) -> float:
        """The calls that ran at the last reading while others waited there; infinity if none waited."""
        return self._last[-1].running if self._last and self._last[-1].waiting else math.inf

    def observe(self, seen: QueueLengths, in_flight: int, *, is_held: bool) -> None:
        """Adjust the bound to a reading.

        Args:
            seen: The engine's queue lengths.
            in_flight: Our calls there.
            is_held: Whether calls wait here for the bound.
        """
        self._last = [*self._last[1 - READINGS :], seen]
        total = max(in_flight, seen.running + seen.waiting)
        spare = max(MIN_SPARE, seen.running // SPARE_SHARE)
        self.is_shared = seen.waiting > spare and total - in_flight > OTHERS_SHARE * in_flight
        if self.is_shared:
            self.calls = math.inf
        elif is_held and not seen.waiting:
            self.calls += self._growth
            self._growth *= 2
        else:
            self._growth = 1
            self._shrink(in_flight, in_flight / max(1, total), spare)

    def _shrink(self, in_flight: int, share: float, spare: int) -> None:
        """Lower the bound by our share of what waited at each of the last readings."""
        excess = min(reading.waiting for reading in self._last) - spare
        first, last = self._last[0].running, self._last[-1].running
        if len(self._last) == READINGS and excess > 0 and 0 < last <= first:
            # Calls beyond an earlier, lower bound may still have to leave.
            self.calls = max(1, min(self.calls, in_flight - math.floor(share * excess)))


class InFlightBound:
    """The bound of one engine: set, learned while calls are in flight, or none."""

    def __init__(
        self,
        engine: Engine,
        queue: EngineQueue,
        configured: int | None,
        *,
        is_plain: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        """Read nothing yet.

        Args:
            engine: The engine.
            queue: Its calls.
            configured: `engine.max_in_flight`.
            is_plain: Returns whether the engine has no scheduler of ours, which orders calls better.
            on_change: Is called when a bound is first learned, and when it is first found that most calls at
                the engine come from elsewhere.
        """
        self._engine = engine
        self._queue = queue
        self._configured = configured
        self._is_plain = is_plain
        self._on_change = on_change
        self._learned = LearnedBound()
        # Beside other gateways the two may alternate: a line each time would fill the log.
        self._announced = {(True, False)}
        self._reader: asyncio.Task[None] | None = None

    @property
    def calls(self) -> float:
        """The calls that may be in flight; infinity without a bound."""
        return self._learned.calls if self._configured is None else self._configured

    @property
    def running(self) -> float:
        """The calls that the engine ran while others waited there, at the last reading; else infinity."""
        return self._learned.running

    @property
    def can_learn(self) -> bool:
        """Whether the engine states its queue lengths, and no bound is set."""
        return self._configured is None and states_queue(self._engine)

    @property
    def is_ordered_here(self) -> bool:
        """Whether the gateway's order applies, at the latest once the engine is full."""
        return self.calls < math.inf or (self.can_learn and not self._learned.is_shared)

    def text(self, policy: str) -> str:
        """Return in words who orders the calls, by which policy."""
        if self.calls < math.inf:
            how = " (learned)" if self._configured is None else ""
            calls = f"{self.calls} call{'s' * (self.calls != 1)}"
            return f"ordered by the gateway ({policy}), at most {calls} in flight{how}"
        if self._learned.is_shared:
            return f"no bound in flight, because most calls there come from elsewhere: {_ENGINES_ORDER}"
        if self.can_learn:
            return f"ordered by the gateway ({policy}) once calls wait there: no bound in flight learned yet"
        return f"no bound in flight: {_ENGINES_ORDER}"

    def reset(self) -> None:
        """Learn from the start: the engine is another process, or orders its calls itself."""
        self._learned = LearnedBound()

    def open(self) -> None:
        """Start reading; must be called in the event loop."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop reading. May be called twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            if not (self._queue.in_flight and self._is_learning()):
                continue
            assert isinstance(self._engine, RemoteEngine)
            seen = await self._engine.queue_lengths()
            if seen is not None and self._is_learning():
                self._take(seen)

    def _is_learning(self) -> bool:
        return self.can_learn and self._queue.has_policy and self._is_plain()

    def _take(self, seen: QueueLengths) -> None:
        in_flight = self._queue.in_flight
        self._learned.observe(seen, in_flight, is_held=len(self._queue) > 0 and in_flight >= self.calls)
        self._queue.limit(self.calls)
        kind = (self.is_ordered_here, self.calls < math.inf)
        if kind not in self._announced:
            self._announced.add(kind)
            self._on_change()


_ENGINES_ORDER = "the engine's own order applies; set engine.max_in_flight"
