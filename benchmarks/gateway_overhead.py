"""Compare what a call costs through the gateway, a plain pass-through and gateways of others (Linux).

    python benchmarks/gateway_overhead.py [--before COMMAND] [--peers PROGRAM ...]

All stand in front of a fake engine with a token each 2 ms, in processes of their own, and are measured in
turn, in another order each round. Load comes from 1, 16, 64 and 256 clients: whole answers of one token, and
streams of 32 events. Connections are opened before the calls are timed. CPU time is that of the process in
front of the engine; on a busy machine it means more than times on the clock, which are mostly waits for a
core. Added times are differences of percentiles from calls to the engine itself. Memory is the proportional
set size of that process and its children after the calls. "Times plain" is over the pass-through on h11; the
other one reads requests as the gateway does.

COMMAND is `autellix` of an earlier version in an environment of its own; peers.py explains PROGRAM.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from peers import peer
from proxies import Proxy, command, free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.engine import MODEL_NAME

CHAT = "/v1/chat/completions"
CALL_LIMIT_S = 120.0
PROGRAMS = 8
PROMPT = "How long is the queue today? " * 70
"""About two kilobytes, as the prompt of a short agent step."""
BENCHMARKS = Path(__file__).parent
HERE = Path(sys.executable).parent
ENVIRONMENT = {
    # Or it would be taken for a server without our scheduler, which sends no reports.
    "AUTELLIX_ENGINE_KIND": "vllm",
    "AUTELLIX_ENGINE_REPORT_SECRET": "secret-of-the-benchmark-of-the-gateway",
}
PLAIN, PLAIN_FAST, DIRECT = "plain pass-through", "plain pass-through, httptools", "no proxy"
TOKENS = {"answer": 1, "stream": 32}


@dataclass(slots=True)
class Load:
    """What a number of clients saw of one way in all rounds."""

    calls_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    elapsed_s: float = 0.0
    memory_mib: float = 0.0
    """The most after any of the rounds."""


def body(load: str) -> dict[str, Any]:
    """Return the body of a call."""
    messages = [{"role": "user", "content": PROMPT}]
    is_stream = load == "stream"
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": TOKENS[load], "stream": is_stream}


async def call(client: aiohttp.ClientSession, way: Proxy, load: str, number: int) -> float:
    """Make one call; return its seconds."""
    headers = {"X-Autellix-Program-ID": f"program-{number % PROGRAMS}", "Authorization": "Bearer none"}
    start_s = time.perf_counter()
    async with client.post(way.url + CHAT, json=body(load), headers=headers) as response:
        answer = await response.read()
    if response.status != 200 or not answer:
        raise SystemExit(f"{way.name}: {response.status} {answer[:300]!r}")
    return time.perf_counter() - start_s


async def add(found: Load, way: Proxy, load: str, clients: int, seconds: float) -> None:
    """Make calls for a time, after one of each client that is not counted."""

    async def work(client: aiohttp.ClientSession, number: int) -> None:
        while time.perf_counter() < start_s + seconds:
            found.calls_s.append(await call(client, way, load, number))

    limits = aiohttp.ClientTimeout(CALL_LIMIT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as client:
        await asyncio.gather(*(call(client, way, load, number) for number in range(clients)))
        cpu_s, start_s = way.processor_s(), time.perf_counter()
        await asyncio.gather(*(work(client, number) for number in range(clients)))
        found.elapsed_s += time.perf_counter() - start_s
        found.cpu_s += way.processor_s() - cpu_s
        found.memory_mib = max(found.memory_mib, way.memory_mib())


def print_rows(load: str, clients: int, found: dict[str, Load]) -> None:
    """Print lines of a Markdown table; CPU time is for a call, and over that of the plain pass-through."""
    plain_s = found[PLAIN].cpu_s / len(found[PLAIN].calls_s)
    for way, each in found.items():
        cpu_s = each.cpu_s / len(each.calls_s)
        p50_s, p99_s = (_percentile(each, part) - _percentile(found[DIRECT], part) for part in (50, 99))
        costs = f"{1e3 * cpu_s:.3f} | {cpu_s / plain_s:.2f}" if cpu_s else "|"
        added = f"{1e3 * p50_s:.2f} | {1e3 * p99_s:.2f}" if way != DIRECT else "|"
        per_s = len(each.calls_s) / each.elapsed_s
        memory = f"{each.memory_mib:.0f}" if each.memory_mib else ""
        print(f"| {load} | {clients} | {way} | {costs} | {added} | {per_s:.0f} | {memory} |", flush=True)


def _percentile(load: Load, percent: int) -> float:
    return statistics.quantiles(load.calls_s, n=100, method="inclusive")[percent - 1]


async def start(stack: AsyncExitStack, options: argparse.Namespace, folder: Path) -> list[Proxy]:
    """Start all ways; gateways have an engine of their own, of their own version."""

    async def engine(python: Path) -> Proxy:
        port = free_port()
        arguments = [str(python), str(BENCHMARKS / "fake_engine.py"), str(port)]
        return await stack.enter_async_context(command("engine", arguments, port, ENVIRONMENT))

    async def way(name: str, arguments: Iterable[object], port: int, health: str = "/health") -> Proxy:
        started = command(name, [*map(str, arguments)], port, ENVIRONMENT, health)
        return await stack.enter_async_context(started)

    plain = await engine(Path(sys.executable))
    url, port = plain.url, free_port()
    ways = [Proxy(DIRECT, url, None)]
    proxy = (sys.executable, BENCHMARKS / "plain_proxy.py", url)
    ways.append(await way(PLAIN, (*proxy, port, "--http", "h11"), port))
    port = free_port()
    ways.append(await way(PLAIN_FAST, (*proxy, port), port))
    for name, program in (("autellix", HERE / "autellix"), ("autellix before", options.before)):
        if program is not None:
            own, port = await engine(program.parent / "python"), free_port()
            ways.append(await way(name, (program, "serve", "--engine", own.url, "--port", port), port))
    for program in options.peers:
        other = peer(program, [url], free_port(), MODEL_NAME, folder)
        started = command(
            other.name, [*other.command], other.port, {**ENVIRONMENT, **other.environment}, other.health
        )
        ways.append(await stack.enter_async_context(started))
    return ways


async def measure(options: argparse.Namespace) -> None:
    """Measure all ways under all loads, and print what is found."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = await start(stack, options, folder)
        for load in TOKENS:
            for clients in options.clients:
                loads = {way.name: Load() for way in ways}
                for turn in range(options.rounds):
                    first = turn % len(ways)
                    for way in ways[first:] + ways[:first]:
                        try:
                            await add(loads[way.name], way, load, clients, options.seconds)
                        except (TimeoutError, aiohttp.ClientError) as error:
                            print(f"{way.name} is left out from here on: {error!r}", file=sys.stderr)
                            ways.remove(way)
                            del loads[way.name]
                print_rows(load, clients, loads)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="COMMAND", help="`autellix` of an earlier version")
    parser.add_argument("--peers", type=Path, metavar="PROGRAM", nargs="+", default=[])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64, 256], help="at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of calls, for each way in each round")
    print(
        "| load | clients | through | CPU ms | times plain | added p50, ms | added p99, ms | calls/s | MiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
