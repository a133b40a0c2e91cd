"""Measure the gateway's overhead per call beside a bare aiohttp proxy and ThunderAgent, in one run.

    python benchmarks/gateway_overhead.py [--engine fake|vllm|both] [--thunderagent CHECKOUT] [--json]
    python benchmarks/gateway_overhead.py --levels 1,16,64 [--before REVISION] [--thunderagent CHECKOUT]

Every target is measured in turn within each round: one call at a time for latency, then many at once for
throughput and for processor time. Added latency is a difference of percentiles against the engine itself. On
a busy machine latency is mostly waiting for a core; a proxy's processor time per call and token is not, and
its inverse is the number of calls that one core can carry in a second.

With `--levels` the fake engine answers at once, and calls come from that many clients at a time: whole
answers, and streams of 32 events. Connections are opened before the calls are timed. `--before` measures the
gateway of an earlier commit in the same run. A target that does not answer all calls of a level in time is
shown without figures there, and left out of the next ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

import aiohttp
import proxies
import uvloop

from autellix_backend.engines.base import Engine
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, Settings
from autellix_lab.demo.model import DEMO_MODEL_NAME, build_demo_model, demo_model_directory
from autellix_lab.fakes.engine import FakeBehaviour, FakeEngine

CHAT = "/v1/chat/completions"
WARM_UP_CALLS = 20
PROGRAMS = 8
PROMPT = "How long is the queue today? " * 70
"""About two kilobytes, as the prompt of a short agent step."""
CALL_LIMIT_S = 60.0
LEVEL_LIMIT_S = 25.0
"""No batch is added to a level that has taken as long."""
ROOT = Path(__file__).parents[1]
SHORT_TOKENS = 16
LONG_TOKENS = 144
TOKEN_DELAY_S = 0.002
"""Without a pause between them the tokens of a stream would come in one piece."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call's times: to its first byte and to its end."""

    first_byte_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class CallLoad:
    """One kind of calls."""

    name: str
    tokens: int
    stream: bool

    def body(self, model: str) -> dict[str, Any]:
        """Return the body of a call."""
        messages = [{"role": "user", "content": PROMPT}]
        return {
            "model": model,
            "messages": messages,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": self.stream,
        }


LEVEL_LOADS = (CallLoad("answer", 16, stream=False), CallLoad("stream", 32, stream=True))
LOADS = (
    CallLoad("answer", SHORT_TOKENS, stream=False),
    CallLoad("stream", SHORT_TOKENS, stream=True),
    CallLoad("long stream", LONG_TOKENS, stream=True),
)


async def call(
    client: aiohttp.ClientSession, way: proxies.Proxy, body: dict[str, Any], number: int
) -> Sample:
    """Make one call and time it."""
    headers = {"X-Autellix-Program-ID": f"program-{number % PROGRAMS}"}
    start_s = time.perf_counter()
    try:
        async with client.post(way.url + CHAT, json=body, headers=headers) as response:
            response.raise_for_status()
            await response.content.readany()
            first_s = time.perf_counter()
            await response.read()
    except TimeoutError as error:
        raise SystemExit(
            f"call {number} through {way.name} was not answered in {CALL_LIMIT_S:g} s"
        ) from error
    return Sample(first_s - start_s, time.perf_counter() - start_s)


async def one_at_a_time(
    ways: list[proxies.Proxy], body: dict[str, Any], rounds: int
) -> dict[str, list[Sample]]:
    """Call every target in turn, in another order each round."""
    samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
    async with _client() as client:
        for number in range(-WARM_UP_CALLS, rounds):
            turn = number % len(ways)
            for way in ways[turn:] + ways[:turn]:
                sample = await call(client, way, {**body, "program_id": f"p-{number % PROGRAMS}"}, number)
                if number >= 0:
                    samples[way.name].append(sample)
    return samples


async def many_at_once(
    way: proxies.Proxy, body: dict[str, Any], calls: int, at_once: int
) -> tuple[float, float]:
    """Return the seconds that the calls took, and the processor seconds of the target's process."""
    numbers = iter(range(calls))

    async def worker(client: aiohttp.ClientSession) -> None:
        for number in numbers:
            await call(client, way, {**body, "program_id": f"p-{number % PROGRAMS}"}, number)

    async with _client() as client:
        before_s, start_s = way.processor_s(), time.perf_counter()
        await asyncio.gather(*(worker(client) for _ in range(at_once)))
        return time.perf_counter() - start_s, way.processor_s() - before_s


async def measure(ways: list[proxies.Proxy], model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every load through every target."""
    rows: list[dict[str, Any]] = []
    for load in LOADS:
        body = load.body(model)
        samples = await one_at_a_time(ways, body, options.rounds)
        seconds: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
        for _ in range(options.batches):
            for way in ways:
                seconds[way.name].append(await many_at_once(way, body, options.calls, options.at_once))
        rows += [_row(load, way, samples, seconds[way.name], options.calls) for way in ways]
    return rows


async def measure_levels(ways: list[proxies.Proxy], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each number of clients, the targets in turn, in another order each time."""
    rows: list[dict[str, Any]] = []
    for load in (load for load in LEVEL_LOADS if load.name in options.loads.split(",")):
        able = list(ways)
        for level in map(int, options.levels.split(",")):
            found = await _measure_level(able, load, level, options)
            able = [way for way in able if found[way.name]]
            fresh = [_level_row(load, level, name, batches) for name, batches in found.items()]
            # Under many clients a level takes long.
            print_levels(fresh, sys.stderr)
            rows += fresh
    return rows


async def _measure_level(
    ways: list[proxies.Proxy], load: CallLoad, level: int, options: argparse.Namespace
) -> dict[str, list[Load]]:
    """Return the batches of each target; none of one that could not answer all calls in time."""
    calls, body = max(options.calls, level), load.body("fake")
    found: dict[str, list[Load]] = {way.name: [] for way in ways}
    lost: set[str] = set()
    start_s = time.perf_counter()
    for batch in range(options.batches):
        if batch and time.perf_counter() - start_s > LEVEL_LIMIT_S:
            break
        turn = batch % len(ways)
        for way in ways[turn:] + ways[:turn]:
            if way.name in lost:
                continue
            try:
                found[way.name].append(await loaded(way, body, calls, level))
            except (SystemExit, aiohttp.ClientError) as error:
                print(f"{way.name} at {level} clients: {error!r}", file=sys.stderr, flush=True)
                lost.add(way.name)
                found[way.name].clear()
    return found


def _level_row(load: CallLoad, level: int, name: str, batches: list[Load]) -> dict[str, Any]:
    row: dict[str, Any] = {"load": load.name, "clients": level, "way": name, "calls": 0}
    if not batches:
        return row
    samples = [sample for batch in batches for sample in batch.samples]
    return row | {
        "calls": len(samples),
        "processor_ms": 1e3 * sum(batch.processor_s for batch in batches) / len(samples),
        "p50_ms": 1e3 * statistics.median(sample.total_s for sample in samples),
        "p99_ms": _percentile_ms(samples, "total", 99),
        "first_p99_ms": _percentile_ms(samples, "first_byte", 99),
        "calls_per_s": statistics.median(len(batch.samples) / batch.elapsed_s for batch in batches),
    }


@dataclass(frozen=True, slots=True)
class Load:
    """What many calls at once took."""

    samples: list[Sample]
    elapsed_s: float
    processor_s: float
    """Of the target's process."""


async def loaded(way: proxies.Proxy, body: dict[str, Any], calls: int, at_once: int) -> Load:
    """Make calls from many clients, each after one that is not counted: a batch measures no connecting."""
    numbers = iter(range(calls))
    samples: list[Sample] = []

    async def worker(client: aiohttp.ClientSession) -> None:
        for number in numbers:
            samples.append(await call(client, way, body, number))  # noqa: PERF401 - the numbers are shared

    async with _client() as client:
        await asyncio.gather(*(call(client, way, body, number) for number in range(at_once)))
        before_s, start_s = way.processor_s(), time.perf_counter()
        await asyncio.gather(*(worker(client) for _ in range(at_once)))
        return Load(samples, time.perf_counter() - start_s, way.processor_s() - before_s)


def print_levels(rows: list[dict[str, Any]], file: TextIO) -> None:
    """Print one line per load, number of clients and target."""
    for row in rows:
        line = f"{row['load']:8} {row['clients']:7} {row['way']:22}"
        if not row["calls"]:
            print(f"{line} not all calls were answered", file=file, flush=True)
            continue
        per_core = f"{1e3 / row['processor_ms']:12.0f}" if row["processor_ms"] else f"{'':12}"
        line += f" {row['processor_ms']:8.3f} {per_core} {row['calls_per_s']:8.0f}"
        print(
            f"{line} {row['p50_ms']:9.2f} {row['p99_ms']:9.2f} {row['first_p99_ms']:9.2f}",
            file=file,
            flush=True,
        )


async def benchmark_levels(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure the targets under more and more clients; each gateway has an engine of its own."""
    async with AsyncExitStack() as stack:

        async def engine(name: str) -> Engine:
            place = folder / name
            place.mkdir()
            found, _ = await stack.enter_async_context(fake_engine(place, token_delay_s=0.0))
            return found

        plain = await engine("plain")
        ways = [
            proxies.Proxy("direct", plain.base_url, None),
            await stack.enter_async_context(proxies.bare(plain)),
        ]
        if options.before is not None:
            checkout = stack.enter_context(worktree(options.before, folder / "checkout"))
            before = proxies.other_gateway(await engine("before"), checkout, "autellix before")
            ways.append(await stack.enter_async_context(before))
        ways.append(await stack.enter_async_context(proxies.gateway(await engine("now"))))
        if options.thunderagent is not None:
            other = proxies.thunderagent(plain, options.thunderagent, "default")
            ways.append(await stack.enter_async_context(other))
        return await measure_levels(ways, options)


@contextmanager
def worktree(revision: str, folder: Path) -> Iterator[Path]:
    """Check an earlier commit out."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def _row(
    load: CallLoad,
    way: proxies.Proxy,
    samples: dict[str, list[Sample]],
    seconds: list[tuple[float, float]],
    calls: int,
) -> dict[str, Any]:
    direct, through = samples["direct"], samples[way.name]
    row: dict[str, Any] = {"load": load.name, "tokens": load.tokens, "way": way.name, "calls": len(through)}
    for kind in ("first_byte", "total"):
        for percent in (50, 99):
            base, value = (_percentile_ms(which, kind, percent) for which in (direct, through))
            row[f"{kind}_p{percent}_ms"] = value
            row[f"added_{kind}_p{percent}_ms"] = value - base
    row["calls_per_s"] = statistics.median(calls / elapsed_s for elapsed_s, _ in seconds)
    row["processor_ms"] = statistics.median(1e3 * processor_s / calls for _, processor_s in seconds)
    return row


def _percentile_ms(samples: list[Sample], kind: str, percent: int) -> float:
    values = [getattr(sample, f"{kind}_s") for sample in samples]
    return 1e3 * statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def print_table(engine: str, rows: list[dict[str, Any]]) -> None:
    """Print one line per load and target, and the cost of a streamed token."""
    print(f"\n{engine}: added to the engine's own time; calls/s with many at once; processor time per call")
    head = f"{'load':12} {'way':22} {'first p50':>10} {'p99':>8} {'total p50':>10} {'p99':>8}"
    print(head + f" {'calls/s':>8} {'cpu ms':>7} {'calls/core-s':>12}")
    for row in rows:
        added = [row[f"added_{kind}_p{p}_ms"] for kind in ("first_byte", "total") for p in (50, 99)]
        per_core = f"{1e3 / row['processor_ms']:12.0f}" if row["processor_ms"] else f"{'':12}"
        numbers = " ".join(f"{value:{width}.2f}" for value, width in zip(added, (10, 8, 10, 8), strict=True))
        line = f"{row['load']:12} {row['way']:22} {numbers} {row['calls_per_s']:8.0f}"
        print(f"{line} {row['processor_ms']:7.2f} {per_core}")
    for way, token_us in token_costs(rows).items():
        print(f"{way}: {token_us:.1f} us of processor time per streamed token")


def token_costs(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the processor time of one more streamed token, in microseconds by target."""
    costs = {row["way"]: {} for row in rows}
    for row in rows:
        costs[row["way"]][row["load"]] = row["processor_ms"]
    tokens = LONG_TOKENS - SHORT_TOKENS
    return {
        way: 1e3 * (by_load["long stream"] - by_load["stream"]) / tokens
        for way, by_load in costs.items()
        if by_load["stream"]
    }


def _client() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(CALL_LIMIT_S))


def _serve_fake(address: str, token_delay_s: float, report: Connection) -> None:
    async def run() -> None:
        behaviour = FakeBehaviour(output_tokens=LONG_TOKENS, token_delay_s=token_delay_s)
        engine = FakeEngine(behaviour, name="fake", report_address=address)
        await engine.start()
        report.send(engine.base_url)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@asynccontextmanager
async def fake_engine(
    folder: Path, token_delay_s: float = TOKEN_DELAY_S
) -> AsyncIterator[tuple[Engine, str]]:
    """Start a fake engine in a process of its own; yield it and its model."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    address = f"ipc://{folder / 'reports.sock'}"
    process = context.Process(target=_serve_fake, args=(address, token_delay_s, sender))
    process.start()
    try:
        url = await asyncio.to_thread(receiver.recv)
        yield proxies.RunningEngine("fake", url, (address,)), "fake"
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


@asynccontextmanager
async def vllm_engine(folder: Path) -> AsyncIterator[tuple[Engine, str]]:
    """Start vLLM with the demo model; yield it and its model."""
    model = str(build_demo_model(demo_model_directory()))
    settings = EngineSettings(model=model, served_model_name=DEMO_MODEL_NAME, state_dir=folder)
    replica = VllmReplica(Settings(engine=settings), name="vllm")
    await replica.start()
    try:
        yield replica, DEMO_MODEL_NAME
    finally:
        await replica.stop()


async def benchmark(options: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Measure the chosen engines."""
    engines = {"fake": fake_engine, "vllm": vllm_engine}
    found: dict[str, list[dict[str, Any]]] = {}
    for name in engines if options.engine == "both" else (options.engine,):
        async with engines[name](folder) as (engine, model), AsyncExitStack() as stack:
            ways = [proxies.Proxy("direct", engine.base_url, None)]
            ways.append(await stack.enter_async_context(proxies.bare(engine)))
            ways.append(await stack.enter_async_context(proxies.gateway(engine)))
            if options.thunderagent is not None:
                for router in options.routers.split(","):
                    other = proxies.thunderagent(engine, options.thunderagent, router)
                    ways.append(await stack.enter_async_context(other))
            found[name] = await measure(ways, model, options)
    return found


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=("fake", "vllm", "both"), default="both")
    parser.add_argument("--thunderagent", type=Path, metavar="CHECKOUT", help="folder of its repository")
    parser.add_argument("--routers", default="default,tr", help="modes of ThunderAgent, by commas")
    parser.add_argument("--rounds", type=int, default=200, help="calls of each load, one at a time, each way")
    parser.add_argument("--calls", type=int, default=300, help="calls of each batch, many at once")
    parser.add_argument("--at-once", type=int, default=16, help="how many at once")
    parser.add_argument("--batches", type=int, default=3, help="batches of each load, each way")
    parser.add_argument("--levels", help="numbers of clients, by commas: measures these alone")
    parser.add_argument("--loads", default="answer,stream", help="which loads with --levels, by commas")
    parser.add_argument("--before", metavar="REVISION", help="an earlier commit of this project")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.levels is not None:
            rows = asyncio.run(benchmark_levels(options, Path(folder)))
            if options.json:
                print(json.dumps(rows, indent=2))
                return
            head = f"{'load':8} {'clients':>7} {'way':22} {'cpu ms':>8} {'calls/core-s':>12} {'calls/s':>8}"
            print(head + f" {'p50 ms':>9} {'p99 ms':>9} {'1st p99':>9}")
            print_levels(rows, sys.stdout)
            return
        found = asyncio.run(benchmark(options, Path(folder)))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for engine, rows in found.items():
        print_table(engine, rows)


if __name__ == "__main__":
    main()
