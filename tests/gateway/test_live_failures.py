"""Real engines are killed and stopped under calls, and the gateway is ended under load: programs go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.other_processes import command_of, is_running, stat_of
from tests.waiting import PATIENCE_S, until, until_set

from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

CHAT = "/v1/chat/completions"
STARTUP_S = 600.0
RETURN_S = 1200.0
LONG_TOKENS = 1000
"""So many that a call is still open when the engine has been seen to have it."""
ENDLESS_TOKENS = 7900
"""As many as the model's context holds: the call outlasts whatever the test does meanwhile."""
SETTINGS = f"""
[gateway]
port = 0
recovery_wait_s = {RETURN_S}
shutdown_grace_s = 300
[engine]
max_num_seqs = 4
"""


@dataclass(slots=True)
class Backend:
    """A running `autellix serve`."""

    process: subprocess.Popen[str]
    url: str

    def engine_pids(self) -> dict[int, str]:
        """Return the processes of the engine with their command lines: all of its guard's session."""
        names = (entry.name for entry in Path("/proc").iterdir())
        stats = {int(name): stat_of(int(name)) for name in names if name.isdigit()}
        guards = {pid for pid, stat in stats.items() if stat and stat[1] == str(self.process.pid)}
        return {
            pid: command_of(pid)
            for pid, stat in stats.items()
            if stat and stat[0] != "Z" and stat[3].isdigit() and int(stat[3]) in guards
        }

    def core_pids(self) -> list[int]:
        """Return the engine's core, which its HTTP server talks to."""
        return [pid for pid, command in self.engine_pids().items() if "EngineCore" in command]


@pytest.fixture(scope="module")
def backend(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("failures")
    (folder / "settings.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", str(demo_model)]
    command += ["--config", str(folder / "settings.toml"), "--served-model-name", DEMO_MODEL_NAME]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "AUTELLIX_CACHE_DIR": str(folder)},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "is ready" in line, (folder / "log").read_text()
        yield Backend(process, line.partition(" at ")[2].partition("/v1")[0])
    finally:
        process.terminate()
        process.communicate(timeout=2 * PATIENCE_S)


@dataclass(slots=True)
class Client:
    """Calls to the backend, counted."""

    backend: Backend
    http: aiohttp.ClientSession

    async def chat(self, program: str, *, max_tokens: int = 8) -> tuple[int, dict[str, Any]]:
        async with self.http.post(self.backend.url + CHAT, **_call(program, max_tokens)) as response:
            return response.status, await response.json()

    async def stream(self, program: str, has_begun: asyncio.Event, *, max_tokens: int) -> bytes:
        async with self.http.post(
            self.backend.url + CHAT, **_call(program, max_tokens, stream=True)
        ) as response:
            assert response.status == 200
            first = await response.content.readuntil(b"\n\n")
            has_begun.set()
            return first + await response.read()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.backend.url + path) as response:
            return response.status, await response.json()

    async def metric(self, start: str) -> float:
        async with self.http.get(self.backend.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))

    async def are_in_engine(self, *programs: str) -> None:
        """Wait until the engine's snapshots have shown a call of each program, or the call has ended."""
        for program in programs:
            await until(partial(self.is_in_engine, program))

    async def is_in_engine(self, program: str) -> bool:
        status, why = await self.get(f"/autellix/v1/programs/{program}/why")
        return status == 200 and all(call["position"] for call in why["calls"])

    async def nothing_is_open(self) -> bool:
        shown = (await self.get("/autellix/v1/engines"))[1]["engines"][0]
        programs = (await self.get("/autellix/v1/programs"))[1]["programs"]
        return not shown["open_calls"] and not any(program["active_calls"] for program in programs)


def _call(program: str, max_tokens: int, **fields: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about queues."}]
    body = {"model": DEMO_MODEL_NAME, "messages": messages, "ignore_eos": True, "max_tokens": max_tokens}
    return {"json": body | fields, "headers": {"X-Autellix-Program-ID": program}}


@asynccontextmanager
async def drill(backend: Backend) -> AsyncIterator[Client]:
    """Yield a client; before and after the drill no call is open, and each was settled once."""
    timeout = aiohttp.ClientTimeout(total=RETURN_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        client = Client(backend, http)
        assert (await client.chat("warm-up"))[0] == 200
        yield client
        await until(client.nothing_is_open)
        assert (await client.get("/readyz"))[0] == 200


def killed_core(backend: Backend) -> tuple[list[int], signal.Signals]:
    return backend.core_pids(), signal.SIGKILL


@pytest.mark.parametrize("fault", [killed_core])
async def test_an_engine_fails_under_calls(backend: Backend, fault: Any) -> None:
    """A stream ends with an error event; a call without a byte of its answer goes to the next engine."""
    streaming, unanswered = f"streaming-{fault.__name__}", f"unanswered-{fault.__name__}"
    async with drill(backend) as client:
        settled_before = await client.metric("autellix_calls_total")
        restarts_before = await client.metric("autellix_engine_restarts_total")
        has_begun = asyncio.Event()
        stream = asyncio.create_task(client.stream(streaming, has_begun, max_tokens=ENDLESS_TOKENS))
        await until_set(has_begun, stream)
        waiting = asyncio.create_task(client.chat(unanswered, max_tokens=LONG_TOKENS))
        await client.are_in_engine(streaming, unanswered)
        old = backend.engine_pids()
        victims, number = fault(backend)
        assert victims
        for pid in victims:
            os.kill(pid, number)
        events = (await stream).split(b"\n\n")
        errors = [json.loads(event[6:])["error"] for event in events if event.startswith(b'data: {"error"')]
        assert [(error["code"], error["retryable"]) for error in errors] == [("engine_unavailable", False)]
        # The programs go on, the one whose stream broke off as well.
        assert (await client.chat(streaming))[0] == 200
        status, answer = await waiting
        assert (status, answer["usage"]["completion_tokens"]) == (200, LONG_TOKENS)
        await until(client.nothing_is_open)
        assert await client.metric("autellix_engine_restarts_total") == restarts_before + 1
        assert await client.metric("autellix_calls_total") == settled_before + 3
        assert not old.keys() & backend.engine_pids().keys(), "nothing is left of the engine that failed"


async def test_an_engine_dies_between_calls(backend: Backend) -> None:
    """The next call waits for the engine's return."""
    async with drill(backend) as client:
        for pid in backend.engine_pids():
            # With one of them others may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        answers = await asyncio.gather(*(client.chat(f"p{number}") for number in range(3)))
        assert [status for status, _ in answers] == [200] * 3
        assert all(answer["autellix"]["wait_s"] > 1 for _, answer in answers)


async def test_the_gateway_ends_under_load(backend: Backend) -> None:
    """Running calls end, fresh ones are refused, no process is left, and all of it in time."""
    async with aiohttp.ClientSession() as http:
        client = Client(backend, http)
        has_begun = asyncio.Event()
        stream = asyncio.create_task(client.stream("ending", has_begun, max_tokens=ENDLESS_TOKENS))
        await until_set(has_begun, stream)
        programs = [f"ending-{number}" for number in range(6)]
        calls = [asyncio.create_task(client.chat(program, max_tokens=LONG_TOKENS)) for program in programs]
        await client.are_in_engine("ending", *programs)
        engine = backend.engine_pids()
        backend.process.send_signal(signal.SIGTERM)

        async def is_draining() -> bool:
            return (await client.get("/readyz"))[0] == 503

        await until(is_draining)
        status, answer = await client.chat("late")
        assert (status, answer["error"]["code"]) == (503, "shutting_down")
        assert (await stream).endswith(b"data: [DONE]\n\n")
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 6
    assert await asyncio.to_thread(backend.process.wait, 2 * PATIENCE_S) == 0
    async with asyncio.timeout(PATIENCE_S):
        while any(map(is_running, engine)):  # noqa: ASYNC110 - they are nobody's children now
            await asyncio.sleep(0.1)
