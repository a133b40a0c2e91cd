"""An engine that dies or hangs is started again, a bounded number of times; a remote one is watched only."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
from tests.engines.test_replica import make_replica, read_pids
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.other_processes import is_running
from tests.waiting import PATIENCE_S, until

from autellix_backend.engines import supervisor
from autellix_backend.engines.base import Engine, EngineError, EngineUnreachableError
from autellix_backend.engines.supervisor import EngineChange, EngineState, RestartPlan, Supervisor
from autellix_backend.settings import EngineSettings

UP, DOWN, RESTARTING, FAILED = EngineState.UP, EngineState.DOWN, EngineState.RESTARTING, EngineState.FAILED
QUICK = {"RESTART_DELAY_S": 0.01, "PROBE_PERIOD_S": 0.02, "PROBE_TIMEOUT_S": 30.0}
HANG_S = 1.0
"""After which a probe counts as unanswered, where one is: a loaded machine answers sooner."""


class Watched:
    """A supervised engine, with the changes that were told."""

    def __init__(self, engine: Engine, settings: EngineSettings) -> None:
        self.supervisor = Supervisor(engine, settings)
        self.changes: list[EngineChange] = []
        self.supervisor.subscribe(self.changes.append)

    @property
    def states(self) -> list[EngineState]:
        return [change.state for change in self.changes]


@asynccontextmanager
async def watched(
    engine: Engine, constants: Mapping[str, float] = MappingProxyType({}), **settings: Any
) -> AsyncIterator[Watched]:
    """Watch an engine with short times; `constants` are the supervisor's."""
    await engine.start()
    values: dict[str, Any] = {**QUICK, **constants}
    with patch.multiple(supervisor, **values):
        watch = Watched(engine, EngineSettings(**settings))
        watch.supervisor.open()
        try:
            yield watch
        finally:
            await watch.supervisor.close()
            await engine.stop()


async def test_a_dead_engine_is_started_again() -> None:
    engine = FakeEngine()
    async with watched(engine) as watch:
        assert watch.supervisor.is_up
        await engine.kill("out of memory")
        assert not watch.supervisor.is_up
        await until(lambda: watch.states == [RESTARTING, UP])
        assert watch.changes[0].reason == "out of memory"
        assert (watch.supervisor.is_up, watch.supervisor.reason) == (True, None)
        assert watch.supervisor.restarts == 1


class Unstartable(FakeEngine):
    """An engine that starts once."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
        if self.starts > 1:
            raise EngineError(f"start {self.starts} failed\nwith a long story")
        await super().start()


async def test_an_engine_that_cannot_be_started_fails_with_its_reason() -> None:
    engine = Unstartable()
    async with watched(engine, {"RESTART_WINDOW_S": 50.0}, max_restarts=3) as watch:
        await engine.kill("out of memory")
        await until(lambda: FAILED in watch.states)
        assert watch.states == [RESTARTING, RESTARTING, RESTARTING, FAILED]
        assert watch.changes[1].reason == "start 2 failed"
        assert watch.changes[-1].reason == (
            "start 4 failed; it is not restarted again after 3 restarts within 50 s"
        )
        assert engine.starts == 4


async def test_an_engine_stays_dead_where_no_restart_is_wanted() -> None:
    engine = FakeEngine()
    async with watched(engine, max_restarts=0) as watch:
        await engine.kill("out of memory")
        await until(lambda: bool(watch.states))
        assert watch.states == [FAILED]
        assert (
            watch.changes[0].reason
            == "out of memory; it is not restarted again after 0 restarts within 600 s"
        )


async def test_a_hung_engine_is_killed_and_started_again() -> None:
    engine = FakeEngine()
    async with watched(engine, {"MAX_FAILED_PROBES": 2, "PROBE_TIMEOUT_S": HANG_S}) as watch:
        engine.behaviour = replace(engine.behaviour, health_status=None)
        await until(lambda: RESTARTING in watch.states)
        engine.behaviour = replace(engine.behaviour, health_status=200)
        await until(lambda: watch.states[-1] is UP)
        assert watch.states == [DOWN, RESTARTING, UP]
        assert watch.changes[1].reason == (
            "fake-0 was killed: it does not answer /health in time, 2 times in a row"
        )


async def test_an_engine_that_stalls_behind_a_healthy_server_is_started_again() -> None:
    silence_s = 9.9
    engine = FakeEngine()
    async with watched(engine, stall_timeout_s=10.0) as watch:
        watch.supervisor.watch_silence(lambda: silence_s)
        assert await watch.supervisor.check()
        assert watch.states == []
        silence_s = 10.0
        await until(lambda: RESTARTING in watch.states)
        silence_s = 0.0
        await until(lambda: watch.states[-1] is UP)
        reason = "fake-0 was killed: it sent no snapshot for 10 s"
        assert watch.changes[0].reason == reason


async def test_a_busy_engine_stays_up_while_probes_are_slow() -> None:
    engine = FakeEngine(FakeBehaviour(health_status=None))
    async with watched(engine, {"MAX_FAILED_PROBES": 1000, "PROBE_TIMEOUT_S": 0.01}) as watch:
        assert await watch.supervisor.check()
        assert watch.states == []


@pytest.mark.parametrize("is_owned", [True, False])
async def test_a_refused_probe_takes_an_engine_down_and_an_answered_one_up(is_owned: bool) -> None:
    engine = FakeEngine(is_owned=is_owned)
    async with watched(engine, {"MAX_FAILED_PROBES": 1000}) as watch:
        engine.behaviour = replace(engine.behaviour, health_status=503)
        checks = [watch.supervisor.check() for _ in range(20)]
        assert not any(await asyncio.gather(*checks))
        assert watch.changes[0].reason == "fake-0 answers /health with status 503"
        engine.behaviour = replace(engine.behaviour, health_status=200)
        await until(lambda: watch.states == [DOWN, UP])


async def test_an_engine_that_is_not_ours_is_never_killed() -> None:
    engine = FakeEngine(FakeBehaviour(health_status=500), is_owned=False)
    async with watched(engine, {"MAX_FAILED_PROBES": 1}) as watch:
        await until(lambda: watch.states == [DOWN])
        await asyncio.sleep(0.1)
        assert engine.is_alive()
        assert (watch.states, watch.supervisor.restarts) == ([DOWN], 0)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", ["server", "tree"])
async def test_a_real_process_is_restarted(tmp_path: Path, end: signal.Signals, victim: str) -> None:
    """Killed or stopped, alone or with all that belongs to it: nothing is left of it, and one is up again."""
    pid_file = tmp_path / "pids"
    replica = make_replica(tmp_path, "--pid-file", str(pid_file))

    timeout_s = HANG_S if end is signal.SIGSTOP else PATIENCE_S
    async with watched(replica, {"MAX_FAILED_PROBES": 2, "PROBE_TIMEOUT_S": timeout_s}) as watch:
        first = [replica.pid or 0, *read_pids(pid_file)]
        for pid in first if victim == "tree" else first[1:2]:
            os.kill(pid, end)
        await until(lambda: RESTARTING in watch.states)
        # The next one is not stopped, and may be slow on a loaded machine.
        supervisor.PROBE_TIMEOUT_S = PATIENCE_S
        await until(lambda: watch.states[-1] is UP)
        await until(lambda: not any(map(is_running, first)))
        second = read_pids(pid_file)
        assert all(map(is_running, second)) and not set(first) & set(second)
    await until(lambda: not any(map(is_running, second)))


class LateServer(FakeEngine):
    """A server of somebody else's that answers from its third start on."""

    def __init__(self) -> None:
        super().__init__(is_owned=False)
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
        if self.starts < 3:
            raise EngineUnreachableError("http://gpu1:8000", "does not answer")
        await super().start()


async def test_a_server_missing_at_the_start_is_up_once_it_answers() -> None:
    engine = LateServer()
    with pytest.raises(EngineUnreachableError):
        await engine.start()
    watch = Watched(engine, EngineSettings())
    watch.supervisor.open()
    try:
        await until(lambda: UP in watch.states)
        assert set(watch.states[:-1]) == {DOWN}
        reason = str(watch.changes[-2].reason)
        assert "does not answer" in reason
        # It is not told to set what it has: only with it a gateway starts so.
        assert "must_answer" not in reason
        assert watch.supervisor.is_up
    finally:
        await watch.supervisor.close()
        await engine.stop()


def test_the_first_is_due_at_once_and_the_delays_double() -> None:
    plan = RestartPlan(5)
    assert [plan.next_delay_s(float(now)) for now in range(6)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]


def test_delays_have_a_bound() -> None:
    plan = RestartPlan(40)
    assert max(plan.next_delay_s(0.0) or 0.0 for _ in range(40)) == 60.0


def test_restarts_outside_the_window_do_not_count() -> None:
    plan = RestartPlan(2)
    times_s = (0.0, 300.0, 599.0, 600.0, 899.0, 900.0)
    assert [plan.next_delay_s(now) for now in times_s] == [0.0, 1.0, None, 1.0, None, 1.0]
