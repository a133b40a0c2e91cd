"""A real vLLM that `autellix vllm serve` starts: it orders programs without a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.drills.processes import Server, Spec
from tests.ports import free_port
from tests.vllm_plugin.import_only_agents import AGENTS, TURNS
from tests.waiting import until

from autellix_backend.engines.vllm_command import environment_defaults
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

START_S = 600.0
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "X-Autellix-Program-ID"
USER = {"role": "user", "content": "hello"}
KEY = "none"


@pytest.fixture(scope="module")
def inside(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("vllm")
    port = free_port()
    command = [sys.executable, "-m", "autellix_backend.cli.main", "vllm", "serve", str(demo_model)]
    command += ["--served-model-name", DEMO_MODEL_NAME, "--enforce-eager", "--max-num-seqs", "1"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "granite", "--api-key", KEY]
    section = {"autellix": {"scheduler": {"policy": "plas", "preemption": "never"}}}
    command += ["--host", "127.0.0.1", "--port", str(port), "--additional-config", json.dumps(section)]
    server = Server(
        Spec(
            name="autellix vllm serve",
            command=command,
            port=port,
            health_path="/health",
            log=tmp_path_factory.mktemp("inside") / "vllm.log",
            environment=environment_defaults(str(demo_model), is_cpu=True),
            start_s=START_S,
        )
    )
    try:
        server.start()
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def session(server: Server, key: str = KEY) -> AsyncIterator[aiohttp.ClientSession]:
    headers, timeout = {"Authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(START_S)
    async with aiohttp.ClientSession(server.url, headers=headers, timeout=timeout) as client:
        yield client


async def waiting(client: aiohttp.ClientSession) -> int:
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(names))


def test_the_log_says_that_calls_are_ordered(inside: Server) -> None:
    assert "Autellix: calls are ordered by their programs, policy plas" in inside.spec.log.read_text()


def test_ten_agents_at_once_are_ten_programs_by_the_client_s_import_alone(inside: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm_plugin.import_only_agents", inside.url, DEMO_MODEL_NAME],
        cwd=ROOT,
        env={**os.environ, "AUTELLIX_BASE_URL": inside.url},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    programs = json.loads(done.stdout)
    assert [len(set(each)) for each in programs] == [1] * AGENTS
    assert len({each[0] for each in programs}) == AGENTS
    assert len(programs[0]) == TURNS


async def test_a_new_program_goes_before_one_that_has_been_served(inside: Server) -> None:
    """With one slot, which a third program holds meanwhile; vLLM's own order is that of arrival."""
    ended: list[str] = []
    async with session(inside) as client:

        async def call(program: str, tokens: int) -> None:
            body = {"model": DEMO_MODEL_NAME, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
            async with client.post("/v1/completions", json=body, headers={PROGRAM: program}) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            ended.append(program)

        await call("served", 300)
        first = asyncio.create_task(call("holding", 1500))
        await until(lambda: _holds(client, 1))
        second = asyncio.create_task(call("served", 4))
        await until(lambda: _holds(client, 2))
        await asyncio.gather(first, second, call("new", 4))
    assert ended == ["served", "holding", "new", "served"]


async def _holds(client: aiohttp.ClientSession, calls: int) -> bool:
    return await waiting(client) == calls


CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": [USER]},
    "/v1/responses": {"input": "hello"},
}


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("path", CALLS)
async def test_calls_of_each_kind_are_answered(path: str, is_streaming: bool, inside: Server) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"model": DEMO_MODEL_NAME, "stream": is_streaming, limit: 5, **CALLS[path]}
    async with (
        session(inside) as client,
        client.post(path, json=body, headers={PROGRAM: "p"}) as answer,
    ):
        content = await answer.read()
        assert answer.status == 200, content
        assert answer.headers[PROGRAM] == "p"
        assert (answer.content_type == "text/event-stream") == is_streaming
        assert len(content) > 10


async def test_vllm_refuses_and_serves_the_rest_in_its_own_words(inside: Server) -> None:
    async with session(inside) as client:
        async with client.post("/v1/chat/completions", data=b"nothing") as answer:
            assert answer.status in (400, 415, 422)
        body = {"model": "none", "messages": [USER]}
        async with client.post("/v1/chat/completions", json=body) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, 404)
        async with client.get("/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == DEMO_MODEL_NAME
        async with client.post("/tokenize", json={"model": DEMO_MODEL_NAME, "prompt": "hello"}) as answer:
            assert answer.status == 200


async def test_without_vllm_s_key_no_call_is_made_and_no_program_ended(inside: Server) -> None:
    body = {"model": DEMO_MODEL_NAME, "messages": [USER], "max_tokens": 2}
    async with session(inside) as client, session(inside, "other") as stranger:
        async with client.post("/v1/chat/completions", json=body, headers={PROGRAM: "mine"}) as answer:
            assert answer.status == 200
        async with stranger.post("/v1/chat/completions", json=body) as answer:
            assert (answer.status, await answer.json()) == (401, {"error": "Unauthorized"})
        async with stranger.delete("/autellix/v1/programs/mine") as answer:
            assert answer.status == 401
        async with client.delete("/autellix/v1/programs/mine") as answer:
            assert answer.status == 204


async def test_a_client_that_disconnects_frees_its_slot(inside: Server) -> None:
    async with session(inside) as client:
        body = {"model": DEMO_MODEL_NAME, "prompt": "hello", "max_tokens": 4000, "ignore_eos": True}
        async with client.post("/v1/completions", json={**body, "stream": True}) as answer:
            await answer.content.readany()
        await until(lambda: _holds(client, 0))
    assert "Autellix: a call could not be followed" not in inside.spec.log.read_text()
