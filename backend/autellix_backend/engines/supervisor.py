"""Watches one running engine, and restarts it when it has died or hangs.

UP ──a probe is refused──► DOWN ──a probe is answered──► UP
UP, DOWN ──the process ended, or was killed because it hangs or stalls──► RESTARTING ──► UP
RESTARTING ──too many restarts, or none wanted──► FAILED, for good

A server that we do not own is only probed: it goes DOWN and UP by itself, even if it was not running yet when
the gateway started.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.engines.base import Engine, EngineError, Health
from autellix_backend.settings import EngineSettings

RESTART_WINDOW_S = 600.0
"""Restarts that lie further apart have causes of their own."""
RESTART_DELAY_S = 1.0
"""The wait before the second restart in the window; it doubles, so that a lasting fault spares the host."""
MAX_RESTART_DELAY_S = 60.0
PROBE_PERIOD_S = 5.0
"""The period of health probes. Failed calls ask for one at once, so it matters to idle engines only."""
PROBE_TIMEOUT_S = 10.0
"""A loaded server answers its health path late, because one event loop serves all its requests."""
MAX_FAILED_PROBES = 3
"""Unanswered probes in a row that make an engine hung; a kill loses its running calls, so not the first."""
LIVENESS_PERIOD_S = 0.25
"""The period of checks of the process, which need no network."""
DOWN_PERIOD_S = 1.0
"""The longest period between probes of an engine that is down, or did not answer the last one."""

logger = logging.getLogger(__name__)


class EngineState(enum.Enum):
    """The state of an engine."""

    UP = "up"
    DOWN = "down"
    """A state without answers, from which the engine may recover or be restarted."""
    RESTARTING = "restarting"
    FAILED = "failed"
    """The end: the engine is gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChange:
    """An engine entered another state, or restarts once more."""

    engine: str
    state: EngineState
    reason: str | None
    """The reason in one line; None when it is up."""


class RestartPlan:
    """When a dead engine is restarted: exponential back-off, and a limit within a window.

    Without jitter: one gateway restarts one engine, so there is no herd to spread.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent_s: deque[float] = deque()

    def next_delay_s(self, now: float) -> float | None:
        """Plan a restart and return the delay before it; None if there were too many lately.

        The first within the window is due at once, each further one after twice the previous delay.
        """
        while self._recent_s and now - self._recent_s[0] >= RESTART_WINDOW_S:
            self._recent_s.popleft()
        count = len(self._recent_s)
        if count >= self._limit:
            return None
        self._recent_s.append(now)
        return 0.0 if count == 0 else min(MAX_RESTART_DELAY_S, RESTART_DELAY_S * 2.0 ** (count - 1))


class Supervisor:
    """Watches one engine, which its owner starts before open() and stops after close()."""

    def __init__(
        self, engine: Engine, settings: EngineSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._plan = RestartPlan(settings.max_restarts)
        self._listeners: list[Callable[[EngineChange], None]] = []
        self._suspected = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None
        self._silence_s: Callable[[], float] = lambda: 0.0
        self._failed_probes = 0
        self._next_probe_s = 0.0
        self.state = EngineState.UP
        self.reason: str | None = None
        """The reason in one line why it is not up."""
        self.is_silent = False
        """Whether it is down because it answers nothing, so that its connections may stand for ever."""
        self.restarts = 0
        """Restarts so far, failed ones included."""

    @property
    def is_up(self) -> bool:
        """Whether calls may be sent; no I/O."""
        return self.state is EngineState.UP and self._engine.is_alive()

    @property
    def problem(self) -> str:
        """Return in one line why the engine is not up."""
        return self.reason or self._engine.failure() or "it is not running"

    def subscribe(self, listener: Callable[[EngineChange], None]) -> None:
        """Call a listener with every change; it must not raise."""
        self._listeners.append(listener)

    def watch_silence(self, silence_s: Callable[[], float]) -> None:
        """Kill and restart the engine after `engine.stall_timeout_s` without a report or snapshot."""
        self._silence_s = silence_s

    def open(self) -> None:
        """Start watching; must be called in the event loop."""
        self._next_probe_s = self._clock() + PROBE_PERIOD_S
        self._watch = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop watching and cancel a restart under way. May be called twice."""
        tasks = [task for task in (self._watch, self._check) if task is not None]
        self._watch = self._check = None
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def suspect(self) -> None:
        """Check the engine soon, because a call could not reach it."""
        self._suspected.set()

    async def check(self) -> bool:
        """Probe the engine at once and return whether it is up; concurrent callers share one probe."""
        if self.is_up:
            if self._check is None or self._check.done():
                self._check = asyncio.create_task(self._check_once())
            await asyncio.shield(self._check)
        return self.is_up

    async def _check_once(self) -> None:
        health = await self._engine.probe(PROBE_TIMEOUT_S)
        if health.problem is not None and not health.is_silent and self.state is EngineState.UP:
            self._become(EngineState.DOWN, f"{self._engine.name} {health.problem}")
        if health.problem is not None:
            self.suspect()

    async def _run(self) -> None:
        while self.state is not EngineState.FAILED:
            is_suspected = await self._next_check()
            try:
                await self._check_engine(is_suspected=is_suspected)
            except Exception:
                # A task's boundary: one failed check must not end the watch.
                logger.exception("the watch over %s failed", self._engine.name)

    async def _next_check(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIVENESS_PERIOD_S):
                await self._suspected.wait()
        is_suspected = self._suspected.is_set()
        self._suspected.clear()
        return is_suspected

    async def _check_engine(self, *, is_suspected: bool) -> None:
        if not self._engine.is_alive():
            await self._recover(self._engine.failure() or f"{self._engine.name} is not running")
        elif self._is_stalled():
            await self._replace(f"it sent no snapshot for {self._settings.stall_timeout_s:g} s")
        elif is_suspected or self._clock() >= self._next_probe_s:
            await self._judge(await self._engine.probe(PROBE_TIMEOUT_S))
            is_well = self.state is EngineState.UP and not self._failed_probes
            period_s = PROBE_PERIOD_S if is_well else min(PROBE_PERIOD_S, DOWN_PERIOD_S)
            self._next_probe_s = self._clock() + period_s

    async def _judge(self, health: Health) -> None:
        if health.problem is None:
            self._failed_probes, self.is_silent = 0, False
            self._become(EngineState.UP, None)
            return
        self._failed_probes += 1
        has_given_up = self._failed_probes >= MAX_FAILED_PROBES
        self.is_silent = has_given_up and health.is_silent
        if has_given_up or not health.is_silent:
            self._become(EngineState.DOWN, f"{self._engine.name} {health.problem}")
        if has_given_up and self._may_replace:
            await self._replace(f"it {health.problem}, {self._failed_probes} times in a row")

    @property
    def _may_replace(self) -> bool:
        return self._engine.is_owned and self._settings.max_restarts > 0

    def _is_stalled(self) -> bool:
        limit_s = self._settings.stall_timeout_s
        return limit_s is not None and self._may_replace and self._silence_s() >= limit_s

    async def _replace(self, problem: str) -> None:
        reason = f"{self._engine.name} was killed: {problem}"
        await self._engine.kill(reason)
        await self._recover(reason)

    async def _recover(self, reason: str) -> None:
        if not self._engine.is_owned:
            await self._await_server(reason)
            return
        while (delay_s := self._plan.next_delay_s(self._clock())) is not None:
            self._become(EngineState.RESTARTING, reason)
            await asyncio.sleep(delay_s)
            try:
                await self._engine.start()
            except (EngineError, OSError) as error:
                reason = str(error).partition("\n")[0]
                continue
            self._failed_probes = 0
            self._become(EngineState.UP, None)
            return
        limit = self._settings.max_restarts
        self._become(
            EngineState.FAILED,
            f"{reason}; it is not restarted again after {limit} restarts within {RESTART_WINDOW_S:g} s",
        )

    async def _await_server(self, reason: str) -> None:
        """Try again to reach a server that did not answer when the gateway started."""
        self._become(EngineState.DOWN, self.reason or reason)
        try:
            await self._engine.start()
        except EngineError as error:
            self._become(EngineState.DOWN, str(error).partition("\n")[0])
        else:
            self._become(EngineState.UP, None)

    def _become(self, state: EngineState, reason: str | None) -> None:
        is_attempt = state is EngineState.RESTARTING
        if (state, reason) == (self.state, self.reason) and not is_attempt:
            return
        self.restarts += is_attempt
        self.state, self.reason = state, reason
        change = EngineChange(engine=self._engine.name, state=state, reason=reason)
        for listener in self._listeners:
            listener(change)
