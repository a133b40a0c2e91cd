"""Libraries of another language, one for each dialect: a task of each is one program of the gateway.

`scripts/agent-clients` does the same with whole agents.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
from tests.fakes.agent_engine import AgentEngine
from tests.fakes.agent_turns import CLOSING
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.engines.factory import make_remote
from autellix_backend.settings import EngineSettings, Settings

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

TASKS = Path(__file__).with_name("clients.mjs")
CACHE = TASKS.parents[2] / ".cache/agent-clients/of-tests"
PACKAGES = ("openai@6", "@anthropic-ai/sdk@^1", "ai@6", "@ai-sdk/openai@^3")
INSTALL_LIMIT_S = 120
PROMPT = "STEPS=run,run,run Count the lines of notes.txt."


@pytest.fixture(scope="session")
def tasks() -> Path:
    """Return the program of the tasks, beside the packages that it needs."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Other workers of this run install the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "node_modules").is_dir():
            install()
        return Path(shutil.copy(TASKS, CACHE))


def install() -> None:
    (CACHE / "package.json").write_text('{"private": true}')
    command = ("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=1", *PACKAGES)
    try:
        subprocess.run(command, cwd=CACHE, check=True, capture_output=True, timeout=INSTALL_LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(CACHE / "node_modules", ignore_errors=True)
        pytest.skip(f"npm's registry has not given the packages: {error}")


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
