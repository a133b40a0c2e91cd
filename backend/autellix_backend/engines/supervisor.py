"""Watches one running engine, and starts it again when it has died or hangs.

UP ──a probe is refused──► DOWN ──a probe is answered──► UP
UP, DOWN ──the process ended, or was killed because it hangs or stalls──► RESTARTING ──► UP
RESTARTING ──too many restarts, or none wanted──► FAILED, for good

A server that is not ours is probed only: it goes DOWN and comes UP by itself, also if it was not there yet
when the gateway started.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.engines.base import Engine, EngineError
from autellix_backend.engines.probe import Health
from autellix_backend.engines.restarts import RestartPlan
from autellix_backend.settings import EngineSettings

RESTART_WINDOW_S = 600.0
"""Restarts that lie further apart have causes of their own."""
RESTART_DELAY_S = 1.0
"""The wait before the second restart in the window; it doubles, so that a lasting fault spares the host."""
PROBE_TIMEOUT_S = 10.0
"""A loaded server answers its health path late, because one event loop serves all its requests."""
MAX_FAILED_PROBES = 3
"""Unanswered probes in a row that make an engine hung; a kill loses its running calls, so not the first."""
LIVENESS_PERIOD_S = 0.25
"""How often the process is looked at, which costs no network."""
DOWN_PERIOD_S = 1.0
"""How often, at least, an engine that is down is probed."""

logger = logging.getLogger(__name__)


class EngineState(enum.Enum):
    """What can be expected of an engine."""

    UP = "up"
    DOWN = "down"
    """It does not answer; it may again, or be restarted."""
    RESTARTING = "restarting"
    FAILED = "failed"
    """It is gone and stays so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChange:
    """An engine is in another state, or restarts once more."""

    engine: str
    state: EngineState
    reason: str | None
    """Why, in one line; None when it is up."""


class Supervisor:
    """The watch over one engine, which its owner has started before open() and stops after close()."""

    def __init__(
        self, engine: Engine, settings: EngineSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._plan = RestartPlan(
            limit=settings.max_restarts,
            window_s=RESTART_WINDOW_S,
            first_delay_s=RESTART_DELAY_S,
        )
        self._listeners: list[Callable[[EngineChange], None]] = []
        self._suspected = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None
        self._silence_s: Callable[[], float] = lambda: 0.0
        self._failed_probes = 0
        self._next_probe_s = 0.0
        self.state = EngineState.UP
        self.reason: str | None = None
        """Why it is not up, in one line."""
        self.restarts = 0
        """Restarts begun so far, those that failed included."""

    @property
    def is_up(self) -> bool:
        """Whether calls may be sent; no I/O."""
        return self.state is EngineState.UP and self._engine.is_alive()

    @property
    def problem(self) -> str:
        """Say in one line why an engine that is not up is not."""
        return self.reason or self._engine.failure() or "it is not running"

    def subscribe(self, listener: Callable[[EngineChange], None]) -> None:
        """Have a listener told of every change; it must not raise."""
        self._listeners.append(listener)

    def watch_silence(self, silence_s: Callable[[], float]) -> None:
        """Have the engine killed and restarted when it has told nothing of its calls for too long.

        Args:
            silence_s: For how many seconds it has had calls and told nothing; see `engine.stall_timeout_s`.
        """
        self._silence_s = silence_s

    def open(self) -> None:
        """Watch from now on; must be called in the event loop."""
        self._next_probe_s = self._clock() + self._settings.probe_period_s
        self._watch = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop watching; a restart under way is broken off. May be called twice."""
        tasks = [task for task in (self._watch, self._check) if task is not None]
        self._watch = self._check = None
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def suspect(self) -> None:
        """Look at the engine soon: somebody could not reach it."""
        self._suspected.set()

    async def check(self) -> bool:
        """Probe the engine at once and say whether it is up; callers at the same time share one probe."""
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
            is_suspected = await self._next_look()
            try:
                await self._look(is_suspected=is_suspected)
            except Exception:
                # A task's boundary: one failed look must not end the watch.
                logger.exception("the watch over %s failed", self._engine.name)

    async def _next_look(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIVENESS_PERIOD_S):
                await self._suspected.wait()
        is_suspected = self._suspected.is_set()
        self._suspected.clear()
        return is_suspected

    async def _look(self, *, is_suspected: bool) -> None:
        if not self._engine.is_alive():
            await self._recover(self._engine.failure() or f"{self._engine.name} is not running")
        elif self._is_stalled():
            await self._replace(f"it told nothing of its calls for {self._settings.stall_timeout_s:g} s")
        elif is_suspected or self._clock() >= self._next_probe_s:
            await self._judge(await self._engine.probe(PROBE_TIMEOUT_S))
            period_s = self._settings.probe_period_s
            self._next_probe_s = self._clock() + (
                period_s if self.state is EngineState.UP else min(period_s, DOWN_PERIOD_S)
            )

    async def _judge(self, health: Health) -> None:
        if health.problem is None:
            self._failed_probes = 0
            self._become(EngineState.UP, None)
            return
        self._failed_probes += 1
        has_given_up = self._failed_probes >= MAX_FAILED_PROBES
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
        while (delay_s := self._delay_s()) is not None:
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
        self._become(EngineState.FAILED, f"{reason}; {self._resignation()}")

    async def _await_server(self, reason: str) -> None:
        """Ask once more for a server that did not answer when the gateway started."""
        self._become(EngineState.DOWN, self.reason or reason)
        try:
            await self._engine.start()
        except EngineError as error:
            self._become(EngineState.DOWN, str(error).partition("\n")[0])
        else:
            self._become(EngineState.UP, None)

    def _delay_s(self) -> float | None:
        return self._plan.next_delay_s(self._clock())

    def _resignation(self) -> str:
        limit = self._settings.max_restarts
        if not limit:
            return "it is not restarted (engine.max_restarts is 0)"
        times = f"{limit} times within {RESTART_WINDOW_S:g} s"
        return f"it is not restarted again, after {times} (engine.max_restarts)"

    def _become(self, state: EngineState, reason: str | None) -> None:
        is_attempt = state is EngineState.RESTARTING
        if (state, reason) == (self.state, self.reason) and not is_attempt:
            return
        self.restarts += is_attempt
        self.state, self.reason = state, reason
        change = EngineChange(engine=self._engine.name, state=state, reason=reason)
        for listener in self._listeners:
            listener(change)
