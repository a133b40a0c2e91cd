"""Libraries of another language, one for each dialect: a task of each is one program of the gateway.

`scripts/agent-clients` does the same with whole agents.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from tests.agents.packages import node_program
from tests.fakes.agent_engine import AgentEngine
from tests.fakes.agent_turns import CLOSING
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.engines.factory import make_remote
from autellix_backend.settings import EngineSettings, Settings

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

PROMPT = "STEPS=run,run,run Count the lines of notes.txt."


@pytest.fixture(scope="session")
def tasks() -> Path:
    """Return the program of the tasks."""
    return node_program("clients.mjs")


@pytest.mark.parametrize("library", ["openai-chat", "ai-responses", "anthropic"])
async def test_a_task_is_one_program(tasks: Path, library: str) -> None:
    """None of them names it: the ids of tool calls hold its calls together, the first included."""
    async with AgentEngine().listening() as engine_url:
        engine = make_remote(EngineSettings(), engine_url, name="scripted", kind="openai")
        await engine.start()
        async with listening(create_app(Settings(), engine)) as url, aiohttp.ClientSession() as client:
            node = await asyncio.create_subprocess_exec(
                *("node", str(tasks), library, url, PROMPT), stdout=asyncio.subprocess.PIPE
            )
            output, _ = await node.communicate()
            async with client.get(f"{url}/autellix/v1/programs") as response:
                programs = (await response.json())["programs"]
        await engine.stop()
    assert output.decode().strip() == CLOSING
    assert [program["finished_calls"] for program in programs] == [4]
