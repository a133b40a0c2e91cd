"""Measure the cost of the process table: operations on each store, and calls through gateways that share one.

    python benchmarks/store_throughput.py [--programs 10000] [--redis-server PROGRAM]

An operation is a call's start or its end on one of many live programs. Gateways run as processes of their own
before one fake engine; the client and the engine share this process. On few cores the gateways share them, so
the CPU time per call, of gateways and of Redis, predicts many machines better than calls/s.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import proxies
import uvloop
from redis import Redis

from autellix_backend.core.policies import make_policy
from autellix_backend.settings import Settings, StoreSettings
from autellix_backend.stores.base import CallEnd, CallStart, ProgramStore
from autellix_backend.stores.factory import make_store
from autellix_backend.stores.redis import RedisStore
from autellix_backend.stores.redis_scripts import RedisScripts
from autellix_backend.stores.table_clock import TableClock

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.redis_server import RedisServer, find_server

CHAT = "/v1/chat/completions"
BODY = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello " * 300}]}
SEED = 7
IDLE_S = 600.0
TIMEOUT_MS = 10_000
"""Nothing may fall back to memory while it is measured."""


@dataclass(frozen=True, slots=True)
class Server:
    """A Redis server of our own."""

    url: str
    pid: int

    def processor_s(self) -> float:
        """Return its CPU time so far (Linux)."""
        return proxies.Proxy("redis", self.url, self.pid).processor_s()


@contextmanager
def redis_server(program: str) -> Iterator[Server]:
    """Start a server that keeps nothing on disk."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(program, Path(folder))
        server.start()
        try:
            with Redis.from_url(server.url) as admin:
                yield Server(server.url, int(admin.info("server")["process_id"]))
        finally:
            server.stop()


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[ProgramStore]:
    """Open a store on a table of its own."""
    settings = StoreSettings(
        url="memory://" if kind == "memory" else url, key_prefix=f"bench-{kind}", timeout_ms=TIMEOUT_MS
    )
    store: ProgramStore
    if kind == "redis":
        store = RedisStore(
            make_policy("plas"),
            RedisScripts(url, key_prefix=settings.key_prefix, timeout_s=TIMEOUT_MS / 1000),
            program_idle_s=IDLE_S,
            session_ttl_s=IDLE_S,
            lease_s=IDLE_S,
            clock=TableClock(time.monotonic),
        )
    else:
        store = make_store(
            Settings(store=settings), session_ttl_s=IDLE_S, clock=time.monotonic, on_fallback=_refuse
        )
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _refuse() -> None:
    raise RuntimeError("the store fell back to memory: this is no measurement")


async def make_call(store: ProgramStore, program: int, number: int, times_s: list[float]) -> None:
    """Start and end a call, and time both."""
    now = time.monotonic()
    name, session = f"program-{program}", f"session-{program}"
    call = CallStart(key=f"k{number}", call_id=f"c{number}", program_id=name, session_id=session)
    begun_s = time.perf_counter()
    inherited = await store.begin(call, now)
    middle_s = time.perf_counter()
    end = CallEnd(
        key=call.key,
        program_id=call.program_id,
        outcome="ok",
        services_s=(0.25,),
        wait_s=0.1,
        table_wait_s=0.1,
        inherited_service_s=inherited.service_s,
        is_estimated=False,
        prompt_tokens=900,
        output_tokens=60,
    )
    await store.settle(end, now)
    times_s += (middle_s - begun_s, time.perf_counter() - middle_s)


async def measure_store(
    kind: str, server: Server, programs: int, calls: int, callers: tuple[int, ...]
) -> tuple[list[str], float]:
    """Return a full store's throughput in lines, and Redis's bytes per program with one finished call."""
    with Redis.from_url(server.url) as admin:
        empty_bytes = _used_bytes(admin)
        async with opened(kind, server.url) as store:
            numbers = iter(range(10**9))
            await _spread(store, list(range(programs)), numbers, 64)
            full_bytes = _used_bytes(admin)
            chooser = random.Random(SEED)
            rows = []
            for count in callers:
                chosen = [chooser.randrange(programs) for _ in range(calls)]
                start_s, own_s, redis_s = time.perf_counter(), time.process_time(), server.processor_s()
                times_s = await _spread(store, chosen, numbers, count)
                cuts = statistics.quantiles(times_s, n=100, method="inclusive")
                microseconds = (
                    1e6 * cuts[49],
                    1e6 * cuts[98],
                    1e6 * (time.process_time() - own_s) / len(times_s),
                    1e6 * (server.processor_s() - redis_s) / len(times_s),
                )
                figures = (len(times_s) / (time.perf_counter() - start_s), *microseconds)
                rows.append(f"{kind:12} {count:8} " + " ".join(f"{value:8.0f}" for value in figures))
        admin.flushall()
    return rows, (full_bytes - empty_bytes) / programs


async def _spread(
    store: ProgramStore, programs: list[int], numbers: Iterator[int], callers: int
) -> list[float]:
    waiting = iter(programs)
    times_s: list[float] = []

    async def caller() -> None:
        for program in waiting:
            await make_call(store, program, next(numbers), times_s)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return times_s


def _used_bytes(admin: Redis) -> int:
    return int(admin.info("memory")["used_memory"])


async def measure_gateways(kind: str, server: Server, count: int, calls: int, at_once: int) -> str:
    """Return the cost of calls through a number of gateways, in a line."""
    url = server.url if kind == "redis" else "memory://"
    settings = Settings(store=StoreSettings(url=url, key_prefix=f"gateways-{count}", timeout_ms=TIMEOUT_MS))
    engine = FakeEngine(FakeBehaviour(output_tokens=16))
    await engine.start()
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(proxies.gateway(engine, settings)) for _ in range(count)]
        client = await stack.enter_async_context(_client())
        await _drive(client, ways, calls // 10, at_once)
        gateways_s, redis_s = sum(way.processor_s() for way in ways), server.processor_s()
        start_s = time.perf_counter()
        await _drive(client, ways, calls, at_once)
        elapsed_s = time.perf_counter() - start_s
        gateways_s = sum(way.processor_s() for way in ways) - gateways_s
        redis_s = server.processor_s() - redis_s
    await engine.stop()
    costs = f"{1e3 * gateways_s / calls:8.3f} {1e3 * redis_s / calls:8.3f}"
    return f"{kind:12} {count:8} {calls / elapsed_s:8.0f} {costs}"


async def _drive(client: aiohttp.ClientSession, ways: list[proxies.Proxy], calls: int, at_once: int) -> None:
    """Call the gateways in turn; each program goes through all of them."""
    numbers = iter(range(calls))

    async def caller() -> None:
        for number in numbers:
            headers = {"X-Autellix-Program-ID": f"program-{number % 97}"}
            url = ways[number % len(ways)].url + CHAT
            async with client.post(url, json=BODY, headers=headers) as response:
                response.raise_for_status()
                await response.read()

    await asyncio.gather(*(caller() for _ in range(at_once)))


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2))


async def run(options: argparse.Namespace) -> None:
    """Measure everything and print it."""
    with redis_server(options.redis_server) as server:
        operations: list[str] = []
        for kind in ("memory", "redis", "fallback"):
            rows, program_bytes = await measure_store(
                kind, server, options.programs, options.calls, (1, options.at_once)
            )
            operations += rows
            if kind == "redis":
                redis_bytes = program_bytes
        calls = [await measure_gateways("memory", server, 1, options.calls, options.at_once)]
        calls += [
            await measure_gateways("redis", server, count, options.calls, options.at_once)
            for count in options.gateways
        ]
    print(f"{options.programs} live programs, {redis_bytes:.0f} bytes of Redis for each")
    head = (
        f"{'store':12} {'callers':>8} {'ops/s':>8} {'p50 us':>8} {'p99 us':>8} {'own us':>8} {'redis us':>8}"
    )
    print(head)
    print("\n".join(operations))
    print(f"{'store':12} {'gateways':>8} {'calls/s':>8} {'gw ms':>8} {'redis ms':>8}")
    print("\n".join(calls))


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000, help="live programs (default: 10000)")
    parser.add_argument("--calls", type=int, default=4000, help="calls per measurement (default: 4000)")
    parser.add_argument("--at-once", type=int, default=64, help="concurrent callers (default: 64)")
    parser.add_argument("--gateways", type=int, nargs="*", default=[1, 2, 4], help="how many to measure")
    parser.add_argument("--redis-server", default=find_server(), help="program of the Redis or Valkey server")
    options = parser.parse_args()
    if options.redis_server is None:
        parser.error("--redis-server: there is no redis-server on the PATH")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
