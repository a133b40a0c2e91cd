"""A gateway with programs to look at: living ones at a fake engine, and ended ones."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from fastapi import FastAPI
from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault
from tests.gateway.snapshots import snapshot, standing
from tests.observe.settled_calls import settled_call
from tests.serving import listening
from tests.waiting import PATIENCE_S, until

from autellix_backend.assembly import create_app
from autellix_backend.console.explain.recent_load import PERIOD_S, Moment
from autellix_backend.console.history.history import PastProgram
from autellix_backend.console.wiring import Console
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.wiring import Gateway
from autellix_backend.observe.settled_call import Outcome, PrefixBreak, SettledCall
from autellix_backend.reports.snapshot import AdmissionSnapshot, DemandSnapshot, EngineSnapshot
from autellix_backend.settings import EngineSettings, GatewaySettings, Settings
from autellix_backend.stores.base import CallStart

CHAT = "/v1/chat/completions"
LEFT_PREFIX = PrefixBreak("tools", "tools[3].description", 1100, 100, 1200)
SYSTEM_NAMES = ("react", "research", "map-reduce", "coder")


@dataclass(slots=True)
class Stage:
    """A gateway that serves in a thread of its own."""

    url: str
    app: FastAPI
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop

    @property
    def gateway(self) -> Gateway:
        """The gateway's parts; use them only in its thread."""
        found: Gateway = self.app.state.gateway
        return found

    @property
    def console(self) -> Console:
        """The console's parts; use them only in its thread."""
        found: Console = self.app.state.console
        return found

    def run(self, task: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the gateway's thread."""
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(PATIENCE_S)

    def call(self, program_id: str, key: str | None = None, **headers: str) -> None:
        """Make one call of a program, and wait for its answer."""
        self.run(self._call(program_id, key, headers))

    def restore(self, *programs: PastProgram) -> None:
        """Add programs that have ended."""

        async def add() -> None:
            for program in programs:
                self.console.history.keep(program)

        self.run(add())

    def sample_load(self, minutes: int) -> None:
        """Add samples of a steady load, and programs that ended: twelve a minute, of 2 s each."""
        load, now_s = self.console.load, time.time()
        clock_s = now_s - 60.0 * minutes

        async def add() -> None:
            nonlocal clock_s
            load._wall_clock = lambda: clock_s
            for number in range(12 * minutes):
                clock_s += PERIOD_S
                load.on_program_ended(clock_s, 2.0)
                load.on_call_settled(settled_call(output_tokens=100 + number % 50))
                load.sample(Moment(3.0, 2.0, 4.0, 0.0, 5.0, 0.5, 0.2, 0.1))
            load._wall_clock = time.time

        self.run(add())

    def fill(self, programs: int) -> None:
        """Put programs with one running call each into the process table, as calls of other gateways are."""

        async def add() -> None:
            for number in range(programs):
                name = SYSTEM_NAMES[number % len(SYSTEM_NAMES)]
                start = CallStart(
                    key=f"filled-{number}", call_id=f"c-{number}", program_id=f"run-{number:04}", name=name
                )
                await self.gateway.store.begin(start, time.monotonic())

        self.run(add())

    def hang(self, *calls: tuple[str, str, str]) -> None:
        """Begin calls without an answer, by program, thread and id; wait until the engine has them."""

        async def send() -> None:
            self.engine.behaviour = FakeBehaviour(fault=Fault.HANG)
            already = len(self.engine.requests)
            for program_id, thread_id, call_id in calls:
                named = {
                    "x-autellix-thread-id": thread_id,
                    "x-autellix-call-id": call_id,
                    "x-autellix-program-name": program_id.rpartition("-")[0] or program_id,
                }
                task = asyncio.create_task(self._call(program_id, None, named))
                _hanging.add(task)
                task.add_done_callback(_hanging.discard)
            await until(lambda: len(self.engine.requests) == already + len(calls))
            self.engine.behaviour = FakeBehaviour()

        self.run(send())

    def tell(self, told: EngineSnapshot) -> None:
        """Send a snapshot of the engine, and wait until the gateway has it."""

        async def send() -> None:
            [handle] = self.gateway.pool
            assert self.engine.report_server is not None
            self.engine.report_server.broadcast(told)
            await until(lambda: (last := handle.snapshots.merged) is not None and last.step == told.step)

        self.run(send())

    def tell_busy(self, *, step: int = 4812, slots: int = 4, free_slots: int = 0) -> None:
        """Send a snapshot in which the first open calls run, and the others wait."""

        async def send() -> list[Any]:
            return [(call.engine_key, call.start) for call in self.gateway.registry]

        opened = self.run(send())
        calls = [
            standing(
                start.program_id,
                place=place,
                level=1 + place // 3,
                call_id=engine_key,
                thread_id=start.thread_id,
                is_running=place <= slots,
                since_s=1.2 * place,
                wait_s=0.4 * place,
                kv_blocks=40 * (place <= slots),
                inactive_place=place - 6 if place > 6 else None,
            )
            for place, (engine_key, start) in enumerate(opened, start=1)
        ]
        self.tell(
            snapshot(
                *calls,
                step=step,
                mean_step_s=0.031,
                slots=slots + free_slots,
                kv_used_blocks=1480,
                kv_total_blocks=2048,
                level_calls=(3, 3, 2),
                admission=AdmissionSnapshot(6, 5, 24_800, 29_491),
                demand=DemandSnapshot(11_200, len(calls), 2.4, ()),
            )
        )

    async def _call(self, program_id: str, key: str | None, headers: Mapping[str, str]) -> None:
        named = {"x-autellix-program-id": program_id, **headers}
        if key is not None:
            named["authorization"] = f"Bearer {key}"
        body = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "secret words"}]}
        async with (
            aiohttp.ClientSession() as client,
            client.post(self.url + CHAT, json=body, headers=named) as response,
        ):
            await response.read()


_hanging: set[asyncio.Task[None]] = set()


@contextmanager
def staged(*, policy: str = "boost", **gateway: Any) -> Iterator[Stage]:
    """Serve a gateway before a fake engine."""
    stages: list[Stage] = []
    end = threading.Event()

    async def serve() -> None:
        # Paths of unix sockets are short, pytest's folders are not.
        with tempfile.TemporaryDirectory() as folder:
            engine = FakeEngine(report_address=f"ipc://{folder}/reports")
            await engine.start()
            try:
                scheduler = SchedulerConfig(policy=policy)
                settings = Settings(
                    gateway=GatewaySettings(**gateway), engine=EngineSettings(), scheduler=scheduler
                )
                app = create_app(settings, engine)
                async with listening(app) as url:
                    stages.append(Stage(url, app, engine, asyncio.get_running_loop()))
                    while not end.is_set():  # noqa: ASYNC110 - the event is another thread's
                        await asyncio.sleep(0.01)
                    for task in tuple(_hanging):
                        task.cancel()
                    await app.state.gateway.registry.idle()
            finally:
                await engine.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="staged-gateway")
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not stages:
        assert thread.is_alive(), "the gateway did not start"
        assert time.monotonic() < deadline, "the gateway did not start in time"
        time.sleep(0.005)
    try:
        yield stages[0]
    finally:
        end.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def ended(program_id: str, *calls: SettledCall, **fields: Any) -> PastProgram:
    """Return a program that ended just now."""
    now = time.time()
    defaults: dict[str, Any] = {"began_at_s": now - 90.0, "ended_at_s": now, "name": "research"}
    return PastProgram(program_id=program_id, start_s=0.0, calls=list(calls), **{**defaults, **fields})


def call(
    call_id: str,
    began_s: float,
    settled_s: float,
    *,
    tools: tuple[tuple[str, float], ...] = (),
    **fields: Any,
) -> SettledCall:
    """Return an answered call; before it ran `tools`."""
    defaults: dict[str, Any] = {
        "interceptions": tools,
        "thread_id": "0",
        "wait_s": 0.0,
        "preemptions": 0,
        "first_token_s": None,
        "prompt_tokens": 1200,
        "cached_tokens": 800,
        "output_tokens": 150,
    }
    return settled_call(call_id=call_id, began_s=began_s, settled_s=settled_s, **{**defaults, **fields})


def telling_program(program_id: str = "research-7") -> PastProgram:
    """Return a program of nine calls in four threads, in which all happens that can."""
    runs: dict[str, Any] = {"runs": ((4.0, 9.0),), "prefilled_s": 5.0, "wait_s": 4.0}
    return ended(
        program_id,
        call("plan", 0.0, 9.0, parents=(), **runs, inactive_s=2.5),
        call("search-1", 12.0, 24.0, parents=("plan",), thread_id="search-1", tools=(("web_search", 3.0),),
             runs=((1.0, 5.0), (8.0, 12.0)), prefilled_s=2.0, wait_s=4.0, preemptions=1),
        call("search-2", 12.5, 39.0, parents=("plan",), thread_id="search-2", tools=(("web_search", 3.5),),
             runs=((2.0, 9.0), (13.0, 19.0), (22.0, 26.5)), prefilled_s=4.0, wait_s=9.0, preemptions=2),
        call("search-3", 13.0, 20.0, parents=("plan",), thread_id="search-3", tools=(("web_search", 4.0),),
             runs=((0.5, 7.0),), prefilled_s=1.0, wait_s=0.5),
        call("read-1", 26.0, 33.0, parents=("search-1",), thread_id="search-1", tools=(("fetch", 1.8),),
             first_token_s=2.0, wait_s=1.0),
        call("read-3", 23.0, 29.0, parents=("search-3",), thread_id="search-3", tools=(("fetch", 2.6),),
             wait_s=2.0),
        call("check", 40.0, 52.0, parents=("search-2",), thread_id="search-2", runs=((6.0, 12.0),),
             prefilled_s=6.8, wait_s=6.0, inactive_s=6.0, cached_tokens=100, prefix_break=LEFT_PREFIX),
        call("broken", 30.0, 31.0, parents=("read-3",), thread_id="search-3", outcome=Outcome.UNAVAILABLE,
             prompt_tokens=None, cached_tokens=None, output_tokens=None, level=None),
        call("write", 53.0, 84.0, parents=("read-1", "check", "read-3"), runs=((9.0, 31.0),),
             prefilled_s=11.5, wait_s=9.0, output_tokens=900),
    )  # fmt: skip


def wide_program(program_id: str, calls: int, *, threads: int = 20, seed: int = 1) -> PastProgram:
    """Return a program of many calls."""
    chance = random.Random(seed)
    clocks = [0.0] * threads
    made: list[SettledCall] = []
    last: dict[int, str] = {}
    for number in range(calls):
        thread = number % threads
        start_s = clocks[thread] + chance.random()
        wait_s, length_s = chance.random(), 1.0 + 4.0 * chance.random()
        clocks[thread] = start_s + wait_s + length_s
        parents = (last[thread],) if thread in last else ()
        last[thread] = f"call-{number}"
        made.append(
            call(f"call-{number}", start_s, clocks[thread], thread_id=f"worker-{thread}", parents=parents,
                 runs=((wait_s, wait_s + length_s),), prefilled_s=wait_s + 0.3, wait_s=wait_s)
        )  # fmt: skip
    return ended(program_id, *sorted(made, key=lambda each: each.began_s))
