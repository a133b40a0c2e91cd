"""`autellix serve --workers N`, with real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from tests.gateway.conftest import until_async
from tests.other_processes import command_of
from tests.redis_server import RedisServer

from autellix_backend.cli.workers import check_workers
from autellix_backend.settings import (
    EngineSettings,
    GatewaySettings,
    Settings,
    SettingsError,
    StoreSettings,
)
from autellix_lab.fakes.engine import FakeEngine

READY = re.compile(
    r"Autellix is ready: .* at (http://127\.0\.0\.1):(\d+)/v1 .*; 2 workers, each .*: (\d+), (\d+)$"
)
CALLS = re.compile(r"^autellix_calls_total\{.*\} (.*)$", re.MULTILINE)
BACK = re.compile(r"autellix: worker (\d) is back, at port (\d+)")
LIMIT_S = 240.0
"""Several interpreters start and load the gateway, perhaps beside others' work."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@dataclass(slots=True)
class Service:
    """The running command."""

    process: asyncio.subprocess.Process
    host: str
    port: int
    own_ports: list[int]

    def workers(self) -> set[int]:
        """Return the process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii")
        return {pid for pid in map(int, children.split()) if "spawn_main" in command_of(pid)}

    async def listed(self, worker: int) -> list[str]:
        """Return the programs as one worker lists them at its own port."""
        url = f"{self.host}:{self.own_ports[worker]}/autellix/v1/programs"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return [row["program_id"] for row in (await answer.json())["programs"]]

    async def back(self) -> tuple[int, int]:
        """Return the number and the port of the worker that is back."""
        assert self.process.stderr is not None
        while True:
            line = (await self.process.stderr.readline()).decode()
            assert line, "the command has ended"
            if found := BACK.match(line):
                return int(found[1]), int(found[2])

    async def text(self, worker: int, path: str) -> str:
        """Return what one worker answers at its own port."""
        url = f"{self.host}:{self.own_ports[worker]}{path}"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def counted_calls(self) -> list[float]:
        """Return the settled calls as each worker's metrics show them."""
        pages = [await self.text(worker, "/metrics") for worker in range(len(self.own_ports))]
        return [
            sum(map(float, re.findall(r"^autellix_calls_total\{.*\} (.*)$", page, re.M))) for page in pages
        ]

    async def call(self, program: str, worker: int | None = None) -> int:
        """Make a call at the common address, or at one worker's own, on a connection of its own."""
        port = self.port if worker is None else self.own_ports[worker]
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                f"{self.host}:{port}/v1/chat/completions",
                json=CHAT,
                headers={"X-Autellix-Program-ID": program},
            ) as answer,
        ):
            return answer.status


@asynccontextmanager
async def serving(redis_server: RedisServer, folder: Path, **settings: str) -> AsyncIterator[Service]:
    engine = FakeEngine()
    await engine.start()
    command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--workers", "2"]
    command += ["--port", "0", "--store", redis_server.url, "--engine", engine.base_url]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "AUTELLIX_ENGINE_STATE_DIR": str(folder), **settings},
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = READY.match(line)
        assert found is not None, line
        yield Service(process, found[1], int(found[2]), [int(found[3]), int(found[4])])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await engine.stop()


@pytest.mark.timeout(LIMIT_S)
async def test_two_workers_share_an_address_and_the_table(redis_server: RedisServer, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), serving(redis_server, tmp_path) as service:
        first = service.workers()
        assert len(first) == 2
        assert [await service.call(f"p{number}") for number in range(8)] == [200] * 8
        names = sorted(f"p{number}" for number in range(8))
        assert sorted(await service.listed(0)) == sorted(await service.listed(1)) == names

        async def are_counted(calls: float) -> bool:
            # One that has no time to answer counts as it did last.
            return await service.counted_calls() == [calls, calls]

        # Each shows the calls of both.
        await until_async(partial(are_counted, 8.0))
        # One dies: the other goes on at once, and another takes its place.
        os.kill(next(iter(first)), signal.SIGKILL)

        async def is_replaced() -> bool:
            return len(service.workers() - first) == 1

        await until_async(is_replaced)
        assert await service.call("p9") == 200

        number, port = await service.back()
        service.own_ports[number - 1] = port
        assert "p9" in await service.listed(0)
        assert "p9" in await service.listed(1)
        # What the one that died had counted is not lost.
        await until_async(partial(are_counted, 9.0))
        workers = service.workers()
        service.process.terminate()
        assert await service.process.wait() == 0
        assert not any(command_of(pid) for pid in workers)


@pytest.mark.timeout(LIMIT_S)
async def test_a_limit_holds_over_both_workers(redis_server: RedisServer, tmp_path: Path) -> None:
    limits = {"AUTELLIX_LIMITS_PROGRAM_CALLS": "3"}
    async with asyncio.timeout(LIMIT_S), serving(redis_server, tmp_path, **limits) as service:
        answers = [await service.call("p", worker) for worker in (0, 1, 0, 1, 0)]
        assert answers == [200, 200, 200, 429, 429]
        assert await service.call("q", 1) == 200


@pytest.mark.timeout(LIMIT_S)
async def test_workers_end_with_their_parent(redis_server: RedisServer, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), serving(redis_server, tmp_path) as service:
        workers = service.workers()
        service.process.kill()
        await service.process.wait()

        async def are_gone() -> bool:
            return not any(command_of(pid) for pid in workers)

        await until_async(are_gone)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(gateway=GatewaySettings(workers=2)), "a Redis or Valkey in store.url"),
        (
            Settings(
                gateway=GatewaySettings(workers=2),
                store=StoreSettings(url="redis://127.0.0.1:1"),
                engine=EngineSettings(model="demo"),
            ),
            "running engines in engine.urls",
        ),
        (
            Settings(
                gateway=GatewaySettings(workers=2, record_path=Path("trace.jsonl")),
                store=StoreSettings(url="redis://127.0.0.1:1"),
            ),
            "no gateway.record_path",
        ),
    ],
)
def test_what_workers_cannot_share_is_refused(settings: Settings, expected: str) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.workers: .*" + re.escape(expected)):
        check_workers(settings)


def test_one_worker_needs_nothing() -> None:
    check_workers(Settings())
