"""vLLM's router in front of the gateway: what a call says in `agentic_context` arrives, and is followed.

`AUTELLIX_VLLM_ROUTER` is the path of its program, in an environment of its own: `pip install vllm-router`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import CHAT_PATH, MODEL_NAME, FakeBehaviour, FakeEngine
from tests.ports import free_port
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.settings import Settings
from autellix_wire import engine_args

ROUTER = os.environ.get("AUTELLIX_VLLM_ROUTER")
FIRST: dict[str, Any] = {
    "program_id": "prog-1",
    "task_id": "task-1",
    "agent_id": "planner",
    "workflow_profile_id": "coding",
    "expected_resume": True,
    "kv_retention_ttl_seconds": 7.0,
    "priority": 3,
}
SUB_AGENT: dict[str, Any] = {
    "program_id": "prog-2",
    "agent_id": "searcher",
    "root_program_id": "prog-1",
    "parent_program_id": "prog-1",
    "agent_role": "searcher",
    "spawn_reason": "delegate",
    "expected_output_tokens": 12,
}
LAST: dict[str, Any] = {"program_id": "prog-1", "expected_resume": False}

pytestmark = [
    pytest.mark.skipif(ROUTER is None, reason="AUTELLIX_VLLM_ROUTER names no router"),
    pytest.mark.timeout(120),
]


@asynccontextmanager
async def routed(
    tmp_path: Path, *options: str
) -> AsyncIterator[tuple[str, FakeEngine, aiohttp.ClientSession]]:
    """Run the router in front of a gateway and a fake engine; yield the router's address."""
    assert ROUTER is not None
    with tempfile.TemporaryDirectory() as folder:
        engine = FakeEngine(FakeBehaviour(), report_address=f"ipc://{folder}/reports")
        await engine.start()
        async with listening(create_app(Settings(), engine)) as gateway, aiohttp.ClientSession() as session:
            port, metrics = free_port(), free_port()
            url = f"http://127.0.0.1:{port}"
            arguments = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
            with (tmp_path / "router.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    ROUTER, *arguments, "--worker-urls", gateway, *options, stdout=log, stderr=log
                )

            async def is_ready() -> bool:
                assert process.returncode is None, (tmp_path / "router.log").read_text()
                try:
                    async with session.get(url + "/readiness") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            try:
                await until(is_ready, 0.1)
                yield url, engine, session
            finally:
                process.terminate()
                await process.wait()
        await engine.stop()


@pytest.mark.parametrize("options", [(), ("--enable-program-scheduling",)], ids=["forwarding", "scheduling"])
async def test_a_context_arrives_through_the_router(tmp_path: Path, options: tuple[str, ...]) -> None:
    async with routed(tmp_path, *options) as (url, engine, session):

        async def call(context: dict[str, Any] | str, **fields: Any) -> tuple[int, str | None]:
            messages = [{"role": "user", "content": "hello"}]
            body = {"model": MODEL_NAME, "messages": messages, "vllm_xargs": {"agentic_context": context}}
            async with session.post(url + CHAT_PATH, json={**body, **fields}) as response:
                await response.read()
                return response.status, response.headers.get("x-autellix-identity-source")

        assert await call(FIRST) == (200, "agentic-program")
        assert await call(json.dumps(FIRST), stream=True) == (200, "agentic-program")
        assert (await call(SUB_AGENT))[0] == 200
        assert await call(LAST) == (200, "agentic-program")
        # With program scheduling the router itself refuses it.
        assert (await call({**FIRST, "expected_resume": "soon"}))[0] == 400
        first, text, sub, last = (request.xargs for request in engine.requests if request.path == CHAT_PATH)
    for xargs in (first, text):
        assert xargs[engine_args.PROGRAM] == "prog-1"
        assert (xargs["autellix_retain_s"], xargs[engine_args.PRIORITY]) == (7.0, "interactive")
        assert engine_args.LAST not in xargs
    assert (sub[engine_args.PROGRAM], sub[engine_args.THREAD]) == ("prog-1", "prog-2")
    assert (last[engine_args.PROGRAM], last[engine_args.LAST]) == ("prog-1", 1)
