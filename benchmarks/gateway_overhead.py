"""What the gateway adds to a call: latency through it less latency at the engine directly, interleaved.

The gateway runs in a process of its own with uvloop, as `autellix serve` runs it. The engines are a fake one,
which answers at once, so that the gateway is all there is, and real vLLM with the demo model.
On a busy machine latency is mostly waiting for a core; the gateway's processor time per call is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines.base import Engine
from autellix_backend.engines.demo_model import DEMO_MODEL_NAME, build_demo_model, demo_model_directory
from autellix_backend.engines.fake import FakeBehaviour, FakeEngine
from autellix_backend.engines.replica import ReplicaSpec, VllmReplica
from autellix_backend.gateway.app import create_app
from autellix_backend.settings import Settings

CHAT = "/v1/chat/completions"
WARM_UP_CALLS = 20


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that another process started, as the gateway's process sees it."""

    name: str
    base_url: str
    accounting_socket: Path | None

    async def start(self) -> None:
        """Do nothing: it runs."""

    async def stop(self) -> None:
        """Do nothing: its owner stops it."""

    def is_alive(self) -> bool:
        """Say yes; the owner would end the measurement otherwise."""
        return True

    def failure(self) -> str | None:
        """Return nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Sample:
    """One call's times: to its first byte and to its end."""

    first_byte_s: float
    total_s: float


def serve_gateway(engine: RunningEngine, report: Connection) -> None:
    """Run a gateway in this process and report its port."""
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(), engine), port=0, log_config=None))

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.01)
        report.send(server.servers[0].sockets[0].getsockname()[1])
        await serving

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())


@asynccontextmanager
async def gateway_before(engine: Engine) -> AsyncIterator[tuple[str, int]]:
    """Start a gateway before the engine and yield its address and process id."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    running = RunningEngine(engine.name, engine.base_url, engine.accounting_socket)
    process = context.Process(target=serve_gateway, args=(running, sender))
    process.start()
    sender.close()
    try:
        port = await asyncio.to_thread(receiver.recv)
        assert process.pid is not None
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


async def call(client: aiohttp.ClientSession, url: str, body: dict[str, Any], number: int) -> Sample:
    """Make one call and time it."""
    headers = {"X-Autellix-Program-ID": f"program-{number % 8}"}
    start = time.perf_counter()
    async with client.post(url + CHAT, json=body, headers=headers) as response:
        response.raise_for_status()
        await response.content.readany()
        first = time.perf_counter()
        await response.read()
    return Sample(first - start, time.perf_counter() - start)


async def measure(urls: dict[str, str], body: dict[str, Any], rounds: int) -> dict[str, list[Sample]]:
    """Call each address in turn, swapping the order from round to round."""
    samples: dict[str, list[Sample]] = {name: [] for name in urls}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=2)) as client:
        for number in range(-WARM_UP_CALLS, rounds):
            for name in sorted(urls, reverse=bool(number % 2)):
                sample = await call(client, urls[name], body, number)
                if number >= 0:
                    samples[name].append(sample)
    return samples


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far (Linux)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def percentile_ms(values: list[float], percent: int) -> float:
    """Return a percentile in milliseconds."""
    return 1e3 * statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def summarize(engine: str, mode: str, samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Compare the two ways; `added` is the difference of their percentiles."""
    row: dict[str, Any] = {"engine": engine, "mode": mode, "calls": len(samples["direct"])}
    for measure_name in ("first_byte", "total"):
        for percent in (50, 99):
            direct, through = (
                percentile_ms([getattr(sample, f"{measure_name}_s") for sample in samples[way]], percent)
                for way in ("direct", "gateway")
            )
            row[f"{measure_name}_p{percent}_ms"] = {
                "direct": direct,
                "gateway": through,
                "added": through - direct,
            }
    return row


async def benchmark(engine: Engine, model: str, rounds: int, tokens: int) -> list[dict[str, Any]]:
    """Measure one engine, with and without streaming."""
    await engine.start()
    try:
        async with gateway_before(engine) as (gateway, pid):
            messages = [{"role": "user", "content": "How long is the queue today? " * 40}]
            body = {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
            urls = {"direct": engine.base_url, "gateway": gateway}
            rows = []
            for mode in ("answer", "stream"):
                before_s = processor_s(pid)
                samples = await measure(urls, {**body, "stream": mode == "stream"}, rounds)
                spent_s = processor_s(pid) - before_s
                row = summarize(engine.name, mode, samples)
                rows.append(row | {"gateway_processor_ms": 1e3 * spent_s / (rounds + WARM_UP_CALLS)})
            return rows
    finally:
        await engine.stop()


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line per comparison."""
    print(f"{'engine':10} {'mode':7} {'time':15} {'direct ms':>10} {'gateway ms':>10} {'added ms':>9}")
    for row in rows:
        for name, values in row.items():
            if isinstance(values, dict):
                numbers = f"{values['direct']:10.2f} {values['gateway']:10.2f} {values['added']:9.2f}"
                print(f"{row['engine']:10} {row['mode']:7} {name:15} {numbers}")
        processor_ms = row["gateway_processor_ms"]
        print(f"{row['engine']:10} {row['mode']:7} the gateway's processor time {processor_ms:.2f} ms")


async def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure the chosen engines."""
    rows: list[dict[str, Any]] = []
    if arguments.engine in ("fake", "both"):
        behaviour = FakeBehaviour(output_tokens=arguments.tokens)
        fake = FakeEngine(behaviour, accounting_socket=folder / "accounts.sock")
        rows += await benchmark(fake, "fake", arguments.rounds, arguments.tokens)
    if arguments.engine in ("vllm", "both"):
        model = build_demo_model(demo_model_directory())
        spec = ReplicaSpec(
            model=model,
            scheduler=SchedulerConfig(),
            served_model_name=DEMO_MODEL_NAME,
            log_path=folder / "engine.log",
        )
        replica = VllmReplica(spec, name="vllm")
        rows += await benchmark(replica, DEMO_MODEL_NAME, arguments.rounds, arguments.tokens)
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("fake", "vllm", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=200, help="calls each way in each mode")
    parser.add_argument("--tokens", type=int, default=16, help="length of an answer")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(run(arguments, Path(folder)))
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
