"""The router of vLLM's production-stack on either side of the gateway: programs are known beyond it.

`AUTELLIX_PRODUCTION_STACK` is the path of its `vllm-router`, in an environment of its own: PyPI has another
program of that name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from tests.client import switched_on
from tests.fakes.engine import MODEL_NAME, FakeEngine
from tests.ports import free_port
from tests.serving import listening
from tests.waiting import PATIENCE_S

import autellix
from autellix_backend.assembly import create_app
from autellix_backend.engines.base import EngineKind
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.settings import EngineSettings, Settings

ROUTER = os.environ.get("AUTELLIX_PRODUCTION_STACK")
MESSAGES: Any = [{"role": "user", "content": "hello"}]
BY_SESSION = ("--routing-logic", "session", "--session-key", "x-session-id")

pytestmark = [
    pytest.mark.skipif(ROUTER is None, reason="AUTELLIX_PRODUCTION_STACK names no router"),
    pytest.mark.timeout(120),
]

Router = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def router(tmp_path: Path) -> Router:
    """Run the router in front of servers; yields its address."""

    @asynccontextmanager
    async def running(*backends: str, routing: tuple[str, ...] = ("--routing-logic", "roundrobin")) -> Any:
        assert ROUTER is not None
        port = free_port()
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--service-discovery", "static"]
        arguments += ["--static-backends", ",".join(backends)]
        arguments += ["--static-models", ",".join([MODEL_NAME] * len(backends)), *routing]
        with (tmp_path / "router.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(ROUTER, *arguments, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            await answers(url, process)
            yield url
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    return running


async def answers(url: str, process: asyncio.subprocess.Process) -> None:
    """Wait until a server answers."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as client:
        while process.returncode is None:
            try:
                async with client.get(url + "/v1/models") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError(f"the router has ended with {process.returncode}")


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    started = [FakeEngine(name=f"fake-{number}") for number in range(2)]
    for engine in started:
        await engine.start()
    yield started
    for engine in started:
        await engine.stop()


def client_at(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def call(client: openai.AsyncOpenAI, **options: Any) -> httpx.Headers:
    """Make a call and return the headers of its answer."""
    answer = await client.chat.completions.with_raw_response.create(
        model=MODEL_NAME, messages=MESSAGES, max_tokens=2, **options
    )
    headers: httpx.Headers = answer.headers
    return headers


async def test_a_gateway_behind_it_knows_the_programs(router: Router) -> None:
    """The mark comes back through the router, so a client that is not configured annotates its next call."""
    engine = FakeEngine()
    served = create_app(Settings(), engine)
    await engine.start()
    async with listening(served) as gateway, router(gateway) as url, client_at(url) as client:
        with switched_on(), autellix.program("agent", id="p"):
            found = await call(client)
            assert found["x-autellix-identity-source"] == "request"
            found = await call(client)
            assert found["x-autellix-identity-source"] == "program-header"
            assert found["x-autellix-program-id"] == "p"
        # It has no route for sessions: a program without a last call ends when it is idle.
        assert served.state.gateway.store._entries.keys() == {"p"}
        assert not served.state.gateway.store._heartbeats
        for name in ("x-dynamo-session-id", "x-session-id", "x-llm-d-inference-fairness-id"):
            found = await call(client, extra_headers={name: "q"})
            assert found["x-autellix-program-id"] == "q"
    await engine.stop()


async def test_a_gateway_in_front_of_it_keeps_programs_at_their_engines(
    router: Router, engines: list[FakeEngine]
) -> None:
    async with router(*(engine.base_url for engine in engines), routing=BY_SESSION) as url:
        remote = RemoteEngine(url)
        await remote.start()
        served = create_app(Settings(engine=EngineSettings(urls=(url,))), remote)
        async with listening(served) as gateway, client_at(gateway) as client:
            for program in [f"p{number}" for number in range(6)] * 3:
                await call(client, extra_headers={"x-autellix-program-id": program})
        # Nothing can be learned of its engines: neither what runs and waits there, nor their memory.
        assert (remote.kind, remote.states_queue, remote.kv_tokens) == (EngineKind.VLLM, False, None)
    homes = [{request.headers["x-session-id"] for request in engine.calls} for engine in engines]
    assert homes[0].isdisjoint(homes[1])
    assert homes[0] | homes[1] == {f"p{number}" for number in range(6)}
    assert sum(len(engine.calls) for engine in engines) == 18
