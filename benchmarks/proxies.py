"""Gateways and other programs in front of an engine, each in a process of its own, for benchmarks."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import psutil
import uvicorn
import uvloop

from autellix_backend.assembly import create_app
from autellix_backend.cli.server import freeze_heap, server_config
from autellix_backend.engines.base import Engine, EngineKind, Health
from autellix_backend.engines.probe import probe
from autellix_backend.settings import Settings

START_S = 60.0
END_S = 10.0
MAX_FREE_PORT = 64_000


@dataclass(frozen=True, slots=True)
class Proxy:
    """A route to the engine; `pid` is the proxy's process, None without a proxy."""

    name: str
    url: str
    pid: int | None

    def processor_s(self) -> float:
        """Return the CPU time of its process so far, in seconds (Linux)."""
        if self.pid is None:
            return 0.0
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text(encoding="ascii").split()[0]) for path in threads) / 1e9

    def memory_mib(self) -> float:
        """Return the proportional set size of its process and its children's, in MiB (Linux)."""
        if self.pid is None:
            return 0.0
        process = psutil.Process(self.pid)
        memory: float = (
            sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True))) / 2**20
        )
        return memory


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that another process started, as the gateway's process sees it."""

    name: str
    base_url: str
    report_endpoints: Sequence[str]
    is_owned: bool = False
    kind: EngineKind = EngineKind.VLLM
    kv_tokens: int | None = None

    async def start(self) -> None:
        """Do nothing: the engine runs already."""

    async def stop(self) -> None:
        """Do nothing: its owner stops it."""

    async def kill(self, reason: str) -> None:
        """Do nothing: its owner ends it."""

    async def probe(self, timeout_s: float) -> Health:
        """Probe the health path."""
        return await probe(self.base_url, timeout_s)

    def is_alive(self) -> bool:
        """Return True; otherwise the owner would end the measurement."""
        return True

    def failure(self) -> str | None:
        """Return nothing."""
        return None


@asynccontextmanager
async def gateway(engine: Engine, settings: Settings | None = None) -> AsyncIterator[Proxy]:
    """Start a gateway as `autellix serve` runs it."""
    running = RunningEngine(engine.name, engine.base_url, engine.report_endpoints)
    async with _child("autellix", _serve_gateway, running, settings or Settings()) as proxy:
        yield proxy


@asynccontextmanager
async def command(
    name: str, arguments: list[str], port: int, environment: dict[str, str], health: str = "/health"
) -> AsyncIterator[Proxy]:
    """Start a program, and wait until it answers at a path."""
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=nothing, stdout=nothing, stderr=nothing, env={**os.environ, **environment}
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await _answers(url + health, process)
        yield Proxy(name, url, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()


@asynccontextmanager
async def _child(name: str, serve: Callable[..., None], *arguments: object) -> AsyncIterator[Proxy]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(*arguments, sender))
    process.start()
    sender.close()
    try:
        port = await asyncio.to_thread(receiver.recv)
        yield Proxy(name, f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        await asyncio.to_thread(process.join, END_S)


def _serve_gateway(engine: RunningEngine, settings: Settings, report: Connection) -> None:
    config = server_config(create_app(settings, engine))
    config.port = 0
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.01)
        freeze_heap()
        report.send(server.servers[0].sockets[0].getsockname()[1])
        await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def _answers(url: str, process: asyncio.subprocess.Process) -> None:
    deadline_s = time.monotonic() + START_S
    async with aiohttp.ClientSession() as client:
        while True:
            try:
                async with client.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if process.returncode is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{url} does not answer")
            await asyncio.sleep(0.05)


def free_port() -> int:
    """Return a port that nothing listens on, low enough for an engine's port of reports above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < MAX_FREE_PORT:
            return port
