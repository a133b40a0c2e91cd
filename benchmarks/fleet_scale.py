"""Measure what a large fleet costs one gateway and one Redis, by event, with simulated engines.

    python benchmarks/fleet_scale.py [--fleets 4:625 64:10000] [--gateways 1 50] [--table-programs 10000]

One gateway's router, registry and overview, without HTTP, take the calls of all programs (ENGINES:PROGRAMS).
A simulated engine is the scheduler's machine on a clock of its own; its calls hold their slots for a while,
and it sends its snapshots as bytes. Programs call, pause and end. Times are CPU times of the one thread, with
garbage collection off: a full one is timed with the memory, of a gateway that has settled several calls of
each program, in a process of its own.

Redis is a real server with the tables of many gateways in this process, and its cost by event is its own CPU
time, so it does not matter how many gateways this machine could carry. Once a second each gateway runs a
round of the reaper, in which it reads the ends of all programs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import multiprocessing
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import psutil
from proxies import RunningEngine
from redis import Redis
from store_throughput import Server, make_call, opened, redis_server
from tests.redis_server import find_server

from autellix_backend.assembly import create_app
from autellix_backend.cli.server import freeze_heap
from autellix_backend.console.explain.current_load import current_load
from autellix_backend.console.explain.overview import overview_of
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.balance.memory import memory_of
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.call import GatewayCall, ReceivedCall
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.engines.refusals import Caller
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.gateway.wiring import Gateway
from autellix_backend.identity.identity import read_identity
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.reports.snapshot import EngineSnapshot, admission_of, demand_of, snapshot_of
from autellix_backend.settings import Settings
from autellix_backend.stores.base import AnswerSource, ProgramStore
from autellix_wire.headers import PROGRAM_ID

TICK_S = 0.1
SNAPSHOT_TICKS, OVERVIEW_TICKS = 5, 50
SLOTS = 256
KV_TOKENS = 400_000
BLOCK_TOKENS = 16
CALL_S, PAUSE_S = 4.0, 5.0
CALLS = 8
FIRST_TOKENS, ADDED_TOKENS, OUTPUT_TOKENS = (500, 3000), (50, 400), 100
TOOL_LISTS = 8
BYTES_PER_TOKEN = 4
AT_ONCE = 64
ROUNDS = 1000
TABLE_CALLS = 4000
ENDS = 400
EVENTS = ("decision", "begin", "settle", "snapshot", "end", "overview")
REDIS_EVENTS = ("call", "answer", "end", "read", "round")
"""`read` is one end as one gateway reads it, `round` one of the reaper."""


class SimulatedEngine:
    """The scheduler's own machine, in which each call holds a slot for a while."""

    def __init__(self) -> None:
        self._machine = Machine(SchedulerConfig(), kv_tokens=KV_TOKENS)
        self._left_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._running: list[str] = []

    def arrive(self, call: GatewayCall, context: Context, now: float, run_s: float) -> None:
        """Queue a call that will hold its slot for `run_s`."""
        self._left_s[call.engine_key], self._tokens[call.engine_key] = run_s, context.tokens
        self._machine.arrive(Arrival(call.engine_key, call.start.program_id, context=context), now)

    def advance(self, now: float, step: int) -> list[str]:
        """Run the batch for a tick; return the calls that have ended."""
        machine = self._machine
        machine.review(now, step, self._tokens.__getitem__)
        machine.tick(now)
        batch = [call.call_id for call in machine.batch(SLOTS)]
        for key in set(self._running).difference(batch):
            machine.preempt(key, now)
        for key in set(batch).difference(self._running):
            machine.start(key, now)
        for key in batch:
            machine.charge(key, TICK_S, now)
            self._left_s[key] -= TICK_S
        ended = [key for key in batch if self._left_s[key] <= 0]
        for key in ended:
            del self._left_s[key]
            tokens = self._tokens.pop(key) + OUTPUT_TOKENS
            machine.finish(key, now, work=float(tokens), context_tokens=tokens)
        self._running = [key for key in batch if key in self._left_s]
        return ended

    def end_program(self, program: str, now: float) -> None:
        """Free its memory."""
        self._machine.end_program(program, now)

    def message(self, now: float, step: int) -> bytes:
        """Return a snapshot as an engine sends it."""
        machine, memory = self._machine, self._machine.admission.memory
        assert memory is not None
        places = memory.inactive.places()
        refused = sorted(machine.refused(), key=lambda call: places[call.program_id])
        calls = enumerate([*machine, *refused], start=1)
        return EngineSnapshot(
            step=step,
            mean_step_s=TICK_S,
            running=len(self._running),
            waiting=len(machine) - len(self._running),
            slots=SLOTS,
            kv_used_blocks=min(memory.active.tokens, KV_TOKENS) // BLOCK_TOKENS,
            kv_total_blocks=KV_TOKENS // BLOCK_TOKENS,
            kv_block_tokens=BLOCK_TOKENS,
            is_block_short=False,
            level_calls=machine.shares.level_sizes(),
            calls=tuple(
                snapshot_of(
                    machine,
                    call,
                    now,
                    place=place,
                    call_id=call.call_id,
                    inactive_place=places.get(call.program_id),
                )
                for place, call in calls
            ),
            admission=admission_of(machine),
            demand=demand_of(machine, memory_of(machine, now)),
        ).to_bytes()


@dataclass(slots=True)
class PlannedProgram:
    """A program as its client sees it."""

    name: str
    tool_list: int
    calls_left: int
    tokens: int
    held_tokens: int = 0


class Fleet:
    """One gateway before simulated engines, and programs that call it."""

    def __init__(self, engines: int, programs: int) -> None:
        self._now, self._step = 0.0, 0
        names = [f"remote-{number}" for number in range(engines)]
        remote = [RunningEngine(name, f"http://{name}:8000", ()) for name in names]
        self._gateway: Gateway = create_app(Settings(), *remote, clock=lambda: self._now).state.gateway
        router = self._gateway.router
        self._gateway.registry.subscribe(on_begun=lambda call: router.on_begun(call.start.program_id))
        self._engines = {name: SimulatedEngine() for name in names}
        self._random = random.Random(programs)
        self._numbers = count()
        self._open: dict[str, tuple[GatewayCall, PlannedProgram]] = {}
        # All have had a call after one pause.
        self._due = [
            (self._random.uniform(0, PAUSE_S), number, self.new_program()) for number in range(programs)
        ]
        heapq.heapify(self._due)
        self._bodies = [
            parse_body(msgspec.json.encode({"model": "m", "messages": [], "tools": [each]}), CHAT_COMPLETIONS)
            for each in range(TOOL_LISTS)
        ]
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        """CPU time of each event, microseconds."""
        self.most_open = 0

    async def run(self, decisions: int) -> None:
        """Run until so many calls were assigned after all programs have come."""
        while self._now < 2 * PAUSE_S or len(self.times["decision"]) < decisions:
            if self._now < 2 * PAUSE_S:
                self.times.clear()
            await self._tick()

    @contextmanager
    def _timed(self, event: str) -> Iterator[None]:
        started_s = time.thread_time()
        yield
        self.times[event].append(1e6 * (time.thread_time() - started_s))

    async def _tick(self) -> None:
        self._step += 1
        self._now = self._step * TICK_S
        while self._due and self._due[0][0] <= self._now:
            await self._call(heapq.heappop(self._due)[2])
        self.most_open = max(self.most_open, len(self._open))
        for name, engine in self._engines.items():
            for key in engine.advance(self._now, self._step):
                await self._answer(name, *self._open.pop(key))
        if self._step % SNAPSHOT_TICKS == 0:
            for name, engine in self._engines.items():
                message, handle = engine.message(self._now, self._step), self._gateway.pool.get(name)
                with self._timed("snapshot"):
                    handle.on_message(message)
        if self._step % OVERVIEW_TICKS == 0:
            self.times["overview"].append(1e6 * await longest_step_s(self._sample()))

    async def _sample(self) -> None:
        await current_load(self._gateway.store, overview_of(self._gateway))

    def new_program(self) -> PlannedProgram:
        """Return a program that has made no call."""
        chooser, calls = self._random, 1 + int(self._random.expovariate(1 / (CALLS - 1)))
        return PlannedProgram(
            f"program-{next(self._numbers)}",
            chooser.randrange(TOOL_LISTS),
            calls,
            chooser.randint(*FIRST_TOKENS),
        )

    async def _call(self, program: PlannedProgram) -> None:
        call = await self.begin(program)
        self._open[call.engine_key] = call, program
        context = Context(program.tokens, program.held_tokens, program.tool_list, FIRST_TOKENS[0])
        run_s = self._random.uniform(0.5, 1.5) * CALL_S
        self._engines[call.engine].arrive(call, context, self._now, run_s)

    async def begin(self, program: PlannedProgram) -> GatewayCall:
        """Route and begin the next call of a program."""
        request = ReceivedCall(
            dialect=CHAT_COMPLETIONS,
            tenant=Tenant(),
            identity=read_identity({PROGRAM_ID.lower(): program.name}, {}, "c"),
            headers={},
            body=msgspec.structs.replace(
                self._bodies[program.tool_list], size_bytes=BYTES_PER_TOKEN * program.tokens
            ),
            caller=Caller(program.name, "", "m"),
        )
        with self._timed("decision"):
            assigned = self._gateway.router.assign(request)
        with self._timed("begin"):
            call = await self._gateway.registry.begin(assigned)
        self._gateway.registry.on_sent(call)
        return call

    async def settle(self, call: GatewayCall, program: PlannedProgram) -> None:
        """Settle a call, after which its program's context has grown."""
        usage = Usage(program.tokens, OUTPUT_TOKENS, program.held_tokens)
        with self._timed("settle"):
            await self._gateway.registry.settle(call, Outcome.OK, has_reports=False, read_usage=lambda: usage)
            self._gateway.router.release(call.assigned)
        program.calls_left -= 1
        program.held_tokens = program.tokens + OUTPUT_TOKENS
        program.tokens = program.held_tokens + self._random.randint(*ADDED_TOKENS)

    async def _answer(self, engine: str, call: GatewayCall, program: PlannedProgram) -> None:
        await self.settle(call, program)
        if not program.calls_left:
            self._engines[engine].end_program(program.name, self._now)
            with self._timed("end"):
                await self._gateway.store.end_program(program.name, self._now)
            program = self.new_program()
        due_s = self._now + self._random.uniform(0.5, 1.5) * PAUSE_S
        heapq.heappush(self._due, (due_s, next(self._numbers), program))


async def longest_step_s(action: Coroutine[Any, Any, None]) -> float:
    """Return the CPU time (s) of the longest step for which an action holds the event loop."""
    task, longest_s, before_s = asyncio.ensure_future(action), 0.0, time.thread_time()
    while not task.done():
        await asyncio.sleep(0)
        now_s = time.thread_time()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


def spread(times: list[float]) -> tuple[float, float, float]:
    """Return the mean, the median and the 99th percentile."""
    ordered = sorted(times)
    return statistics.fmean(times), statistics.median(times), ordered[int(0.99 * (len(ordered) - 1))]


def measure_gateway(engines: int, programs: int, decisions: int) -> str:
    """Return the cost of each event at one gateway, in a line of microseconds."""
    gc.disable()
    fleet = Fleet(engines, programs)
    asyncio.run(fleet.run(decisions))
    costs = {event: spread(fleet.times[event]) for event in EVENTS}
    cells = [f"{mean:.0f} ({p99:.0f})" for mean, _, p99 in costs.values()]
    per_s = 1e6 / costs["decision"][0]
    return row(engines, programs, fleet.most_open, f"{per_s:.0f}", *cells)


def measure_memory(programs: int) -> str:
    """Return what a gateway holds for programs that have made some calls, and its cost there, in a line."""
    fleet = Fleet(4, 0)
    freeze_heap()
    before_bytes = psutil.Process().memory_info().rss
    asyncio.run(_fill(fleet, programs))
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    started_s = time.thread_time()
    gc.collect()
    mean, _, p99 = spread(fleet.times["settle"][-programs:])
    settle, full_ms = f"{mean:.0f} ({p99:.0f})", 1e3 * (time.thread_time() - started_s)
    return row(
        programs,
        f"{grown_bytes / 2**20:.0f}",
        f"{grown_bytes / programs / 1e3:.1f}",
        f"{full_ms:.0f}",
        settle,
    )


async def _fill(fleet: Fleet, programs: int) -> None:
    planned = [fleet.new_program() for _ in range(programs)]
    for _ in range(CALLS):
        for program in planned:
            await fleet.settle(await fleet.begin(program), program)


def row(*cells: object) -> str:
    """Return a line of a table."""
    return " ".join(f"{cell:>13}" for cell in cells)


async def measure_redis(server: Server, gateways: int, programs: int) -> str:
    """Return Redis's keys and bytes for each program, and its CPU time by event, in a line."""
    numbers = count()
    with Redis.from_url(server.url) as admin:
        before = table_size(admin)
        async with AsyncExitStack() as stack:
            tables = [await stack.enter_async_context(opened("redis", server.url)) for _ in range(gateways)]

            async def each(number: int, act: Callable[[ProgramStore, int], Awaitable[object]]) -> float:
                """Let the gateways act in turn, some at once; return microseconds of Redis for each act."""
                started_s, waiting = server.processor_s(), iter(range(number))

                async def caller() -> None:
                    for at in waiting:
                        await act(tables[at % gateways], at)

                await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
                return 1e6 * (server.processor_s() - started_s) / number

            async def call(table: ProgramStore, at: int) -> None:
                await make_call(table, at % programs, next(numbers), [])

            async def answer(table: ProgramStore, at: int) -> None:
                source = AnswerSource(f"program-{at % programs}", "remote-0")
                await table.keep_answer("", [f"answer-{at}"], source, time.monotonic())

            async def end(table: ProgramStore, at: int) -> None:
                await table.end_program(f"program-{at}", time.monotonic())

            async def reap(table: ProgramStore, _: int) -> None:
                await table.reap(time.monotonic())

            await each(programs, call)
            full = table_size(admin)
            costs = {
                "call": await each(TABLE_CALLS, call),
                "answer": await each(TABLE_CALLS, answer),
                "end": await each(ENDS, end),
                # Each gateway reads all of them in its next round.
                "read": await each(gateways, reap) / ENDS,
                "round": await each(ROUNDS, reap),
            }
        admin.flushall()
    keys, size_bytes = ((after - first) / programs for first, after in zip(before, full, strict=True))
    cells = [f"{costs[event]:.1f}" for event in REDIS_EVENTS]
    return row(
        gateways, programs, f"{keys:.1f}", f"{size_bytes:.0f}", *cells, f"{calls_per_s(costs, gateways):.0f}"
    )


def table_size(admin: Redis) -> tuple[int, int]:
    """Return the keys of a server, and its bytes without those of connections."""
    memory = admin.info("memory")
    return int(admin.dbsize()), int(memory["used_memory"] - memory["mem_clients_normal"])


def calls_per_s(costs: Mapping[str, float], gateways: int) -> float:
    """Return the calls a second that one core of Redis carries, of programs with CALLS calls each."""
    call_us, program_us = costs["call"] + costs["answer"], costs["end"] + gateways * costs["read"]
    return (1e6 - gateways * costs["round"]) / (call_us + program_us / CALLS)


def main() -> None:
    """Read the options, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    fleets = ["4:625", "16:2500", "64:1000", "64:10000"]
    parser.add_argument("--fleets", nargs="*", default=fleets, help="engines:programs at a gateway")
    parser.add_argument("--decisions", type=int, default=5000, help="calls in each fleet (default: 5000)")
    parser.add_argument("--held-programs", type=int, nargs="*", default=[1000, 5000, 10_000])
    parser.add_argument("--gateways", type=int, nargs="*", default=[1, 10, 50], help="that share the Redis")
    parser.add_argument("--table-programs", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--redis-server", default=find_server(), help="program of the Redis or Valkey server")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as fresh:
        print("one gateway, microseconds of CPU time: mean (p99); of the overview the longest step")
        print(row("engines", "programs", "open calls", "decisions/s", *EVENTS))
        for fleet in options.fleets:
            engines, programs = map(int, fleet.split(":"))
            print(fresh.submit(measure_gateway, engines, programs, options.decisions).result(), flush=True)
        print(row("programs", "grown MiB", "kB/program", "full GC ms", "settle"))
        for programs in options.held_programs:
            print(fresh.submit(measure_memory, programs).result(), flush=True)
    print("Redis, microseconds of its CPU time")
    print(row("gateways", "programs", "keys/program", "bytes/program", *REDIS_EVENTS, "calls/s"))
    with redis_server(options.redis_server) as server:
        for gateways in options.gateways:
            for programs in options.table_programs:
                print(asyncio.run(measure_redis(server, gateways, programs)), flush=True)


if __name__ == "__main__":
    main()
