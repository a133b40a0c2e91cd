"""A relay in front of a gateway, which keeps the calls of clients; and the gateway, started for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from autellix_wire.headers import IDENTITY_SOURCE, PROGRAM_ID

MAX_BODY_BYTES = 64 * 2**20
HOP_BY_HOP = {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "accept-encoding"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedCall:
    """A call of a task, as its client sent it and received the answer."""

    task: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    answer: bytes
    program: str
    source: str


class Relay:
    """Passes requests for `/TASK/…` on to a server as `/…`, and keeps its calls."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.calls: list[RelayedCall] = []
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Relay]:
        """Listen on a free port of the loopback address."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{task}/{path:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(auto_decompress=False, timeout=timeout) as self._client:
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield self
            finally:
                await runner.cleanup()

    def of(self, task: str) -> list[RelayedCall]:
        """Return the calls of the tasks whose names begin so."""
        return [call for call in self.calls if call.task.startswith(task)]

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        path, sent = "/" + request.match_info["path"], await request.read()
        headers = end_to_end(request.headers)
        if "Upgrade" in headers:
            headers["Connection"] = "Upgrade"
        url = f"{self._server}{path}" + (f"?{request.query_string}" if request.query_string else "")
        async with self._client.request(request.method, url, headers=headers, data=sent or None) as answer:
            response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers))
            received = bytearray()
            # Clients may leave at the closing event.
            try:
                with contextlib.suppress(ConnectionError):
                    await response.prepare(request)
                    async for chunk in answer.content.iter_any():
                        received += chunk
                        await response.write(chunk)
                    await response.write_eof()
            finally:
                if source := answer.headers.get(IDENTITY_SOURCE):
                    call = RelayedCall(
                        task=request.match_info["task"],
                        path=path,
                        headers=headers,
                        body=sent,
                        answer=bytes(received),
                        program=answer.headers[PROGRAM_ID],
                        source=source,
                    )
                    self.calls.append(call)
        return response


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a relay passes on."""
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


def output_of(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return what it prints.

    Raises:
        CalledProcessError: if it fails.
    """
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, cwd=cwd, env=env)
    return done.stdout


@asynccontextmanager
async def running_gateway(program: str, engine: str) -> AsyncIterator[str]:
    """Start `autellix serve` in front of an engine; yield its root."""
    with tempfile.TemporaryDirectory() as state:
        process = await asyncio.create_subprocess_exec(
            *(program, "serve", "--engine", engine, "--port", "0"),
            env={**os.environ, "AUTELLIX_CACHE_DIR": state},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            ready = (await process.stdout.readline()).decode()
            yield re.findall(r"at (http://\S+)/v1 ", ready)[-1]
        finally:
            process.terminate()
            await process.wait()
