"""Proxies before an engine, each in a process of its own: ours, a bare one, and ThunderAgent's.

Used by gateway_overhead.py. ThunderAgent is not a dependency: name a checkout of it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
import uvloop
from aiohttp import web
from fastapi import FastAPI

from autellix_backend.cli.server import freeze_heap, server_config
from autellix_backend.engines.base import Engine, EngineKind, Health
from autellix_backend.engines.probe import probe
from autellix_backend.gateway.app import create_app
from autellix_backend.settings import Settings

START_S = 30.0
END_S = 10.0
KEEPALIVE_S = 2.0
MAX_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Proxy:
    """A route to the engine; `pid` is the proxy's process, None without a proxy."""

    name: str
    url: str
    pid: int | None

    def processor_s(self) -> float:
        """Return the processor time of its process so far, in seconds (Linux)."""
        if self.pid is None:
            return 0.0
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text(encoding="ascii").split()[0]) for path in threads) / 1e9


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
async def other_gateway(engine: Engine, checkout: Path, name: str) -> AsyncIterator[Proxy]:
    """Start the gateway of another checkout of this project, on this interpreter's packages."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'sdk'}:{checkout / 'backend'}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        engine.base_url,
        *engine.report_endpoints,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield Proxy(name, f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def bare(engine: Engine) -> AsyncIterator[Proxy]:
    """Start a minimal aiohttp proxy that only relays bytes."""
    async with _child("bare aiohttp", _serve_bare, engine.base_url) as proxy:
        yield proxy


@asynccontextmanager
async def thunderagent(engine: Engine, checkout: Path, router: str) -> AsyncIterator[Proxy]:
    """Start ThunderAgent's proxy from a checkout.

    Args:
        engine: The engine behind it.
        checkout: The folder of its repository.
        router: Its mode: `default` relays, `tr` schedules.
    """
    port = _free_port()
    command = [sys.executable, "-m", "ThunderAgent", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backends", engine.base_url, "--router", router, "--log-level", "warning"]
    process = await asyncio.to_thread(_spawn, command, checkout)
    try:
        url = f"http://127.0.0.1:{port}"
        await _answers(url + "/health", process)
        yield Proxy(f"ThunderAgent ({router})", url, process.pid)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, END_S)
        except subprocess.TimeoutExpired:
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


def _serve_gateway(engine: RunningEngine, settings: Settings, report: Connection | _Printed) -> None:
    config, settle_heap = _as_served(create_app(settings, engine))
    config.port = 0
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.01)
        settle_heap()
        report.send(server.servers[0].sockets[0].getsockname()[1])
        await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _as_served(app: FastAPI) -> tuple[uvicorn.Config, Callable[[], None]]:
    """Return the server's configuration and the last act at the start, as `autellix serve` has them."""
    try:
        # Of an earlier commit.
        protocol = importlib.import_module("autellix_backend.gateway.http.protocol")
        connections = importlib.import_module("autellix_backend.gateway.http.connections")
        heap = importlib.import_module("autellix_backend.gateway.heap")
    except ImportError:
        return server_config(app), freeze_heap
    http: Any = protocol.bounded_protocol(connections.ConnectionTable(connections.connection_limit()))
    config = uvicorn.Config(app, http=http, ws="none", access_log=False, log_config=None)
    return config, heap.settle_heap


def _serve_bare(engine_url: str, report: Connection) -> None:
    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def relay(request: web.Request) -> web.StreamResponse:
                body = await request.read()
                headers = {"content-type": "application/json"}
                async with session.post(engine_url + request.path, data=body, headers=headers) as upstream:
                    if upstream.content_type != "text/event-stream":
                        content = await upstream.read()
                        return web.Response(
                            body=content, status=upstream.status, content_type=upstream.content_type
                        )
                    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                    await response.prepare(request)
                    async for chunk in upstream.content.iter_any():
                        await response.write(chunk)
                    return response

            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.router.add_post("/{path:.*}", relay)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
            report.send(runner.addresses[0][1])
            await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _spawn(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, stdin=nothing, stdout=nothing, stderr=nothing)


async def _answers(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    async with aiohttp.ClientSession() as client:
        while True:
            try:
                async with client.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{url} does not answer")
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Printed:
    """Takes the port in place of a pipe's end."""

    def send(self, port: int) -> None:
        """Print it."""
        print(port, flush=True)


def main() -> None:
    """Serve a gateway before a running engine until it is ended; print its port."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", help="address of the engine")
    parser.add_argument("report_endpoints", nargs="*", help="addresses of the engine's reports")
    args = parser.parse_args()
    _serve_gateway(RunningEngine("fake", args.url, args.report_endpoints), Settings(), _Printed())


if __name__ == "__main__":
    main()
