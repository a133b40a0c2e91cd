"""What the gateway knows of a program decides in a real engine that is short of KV memory."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.conftest import LIVE_STARTUP_S
from tests.gateway.live_states import watch
from tests.waiting import PATIENCE_S

from autellix_backend.assembly import create_app
from autellix_backend.core.policies import make_policy
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, GatewaySettings, Settings
from autellix_backend.stores.base import CallEnd, CallStart
from autellix_backend.stores.memory import MemoryStore
from autellix_lab.bench.prompts import random_words
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

CHAT = "/v1/chat/completions"
BLOCK_TOKENS = 32
BLOCKS = 65
FINAL = {"X-Autellix-Final": "true"}
CAPACITY = int(0.95 * (BLOCKS - 1) * BLOCK_TOKENS)


@pytest.fixture(scope="module")
def short_engine(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmReplica]:
    """Yield a vLLM server with the default scheduler and KV memory for two thousand tokens."""
    pytest.importorskip("vllm")
    blocks = ("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(BLOCKS))
    engine = EngineSettings(
        model=str(demo_model),
        served_model_name=DEMO_MODEL_NAME,
        state_dir=tmp_path_factory.mktemp("short-engine"),
        max_num_seqs=4,
        startup_timeout_s=LIVE_STARTUP_S,
        extra_args=(*blocks, "--max-model-len", str((BLOCKS - 1) * BLOCK_TOKENS)),
    )
    replica = VllmReplica(Settings(engine=engine))
    asyncio.run(replica.start())
    yield replica
    asyncio.run(replica.stop())


@dataclass(slots=True)
class Backend:
    """A gateway with default settings before the engine."""

    url: str
    client: aiohttp.ClientSession
    store: MemoryStore

    async def call(self, program: str, words: int, max_tokens: int, **headers: str) -> None:
        """Make a call whose prompt has about as many tokens as words, which no other program shares."""
        body = {
            "model": DEMO_MODEL_NAME,
            "messages": [{"role": "user", "content": " ".join(random_words(random.Random(program), words))}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        named = {"X-Autellix-Program-ID": program, **headers}
        async with self.client.post(self.url + CHAT, json=body, headers=named) as response:
            assert response.status == 200, await response.text()
            await response.read()

    async def get(self, path: str) -> Any:
        async with self.client.get(f"{self.url}/autellix/v1/{path}") as response:
            return await response.json()

    async def remember(self, program: str, began_s: float, prompt_tokens: int) -> None:
        """Have the gateway know a call of the program that finished elsewhere."""
        start = CallStart(key=f"{program}-past", call_id="past", program_id=program)
        await self.store.begin(start, began_s)
        end = CallEnd(
            key=start.key,
            program_id=program,
            outcome="ok",
            services_s=(1.0,),
            wait_s=0.0,
            table_wait_s=0.0,
            inherited_service_s=0.0,
            is_estimated=False,
            prompt_tokens=prompt_tokens,
        )
        await self.store.settle(end, began_s)

    async def reason(self, program: str) -> str:
        """Return why the program's only call waits or runs; empty while it has none."""
        calls = (await self.get(f"programs/{program}/why")).get("calls")
        return str(calls[0]["text"]) if calls else ""


@asynccontextmanager
async def backend(engine: VllmReplica, listen: Any) -> AsyncIterator[Backend]:
    settings = Settings(gateway=GatewaySettings(report_wait_s=5.0))
    store = MemoryStore(make_policy(settings.scheduler.policy), program_idle_s=600.0, session_ttl_s=60.0)
    async with listen(create_app(settings, engine, store=store)) as url, aiohttp.ClientSession() as client:
        yield Backend(url, client, store)


PLACES = {"old": "No program is", "new": "1 program is", "heavy": "2 programs are"}


async def pose(rig: Backend, attempt: int) -> dict[str, str] | None:
    """Let three programs wait for memory that another holds.

    Returns:
        Their reasons once they are in order; None if the holder has ended before a snapshot showed it.
    """
    reasons: dict[str, str] = {}

    async def comes(condition: Callable[[], bool], *programs: str) -> bool:
        """Return whether the reasons meet a condition while the holder runs."""
        while not holder.done():
            reasons.update({each: await rig.reason(f"{each}-{attempt}") for each in programs})
            if condition():
                return True
            await asyncio.sleep(0.05)
        return False

    def is_in_order() -> bool:
        return all(f"free. {ahead} ahead of it." in reasons[program] for program, ahead in PLACES.items())

    holder = asyncio.create_task(rig.call(f"holder-{attempt}", 1270, 740, **FINAL))
    calls: list[asyncio.Task[None]] = []
    holds = await comes(lambda: "It has been in " in reasons["holder"], "holder")
    if holds:
        await rig.remember(f"old-{attempt}", 0.0, prompt_tokens=100)
        await rig.remember(f"heavy-{attempt}", time.monotonic(), prompt_tokens=10_000_000)
        calls = [asyncio.create_task(rig.call(f"{program}-{attempt}", 650, 4, **FINAL)) for program in PLACES]
        holds = await comes(is_in_order, *PLACES)
    # Once the holder has left, all of them run.
    await asyncio.gather(holder, *calls)
    return reasons if holds else None


async def test_programs_wait_by_the_age_and_work_that_the_gateway_knows(
    short_engine: VllmReplica, listen: Any
) -> None:
    """The old one came first; the one with much work counts as late, though it came before the new one."""
    async with backend(short_engine, listen) as rig, asyncio.timeout(4 * PATIENCE_S):
        attempts = itertools.count()
        # An engine that is faster than its snapshots shows nothing.
        while (reasons := await pose(rig, next(attempts))) is None:
            pass
        needs = rf"It waits for KV memory: it needs [\d,]+ tokens, [\d,]+ of {CAPACITY:,} are free\."
        assert re.match(needs, reasons["old"])
        assert "has done 10,000,000 tokens of work: too much for a head start." in reasons["heavy"]


async def test_programs_that_wait_for_memory_are_those_that_the_engine_keeps_waiting(
    short_engine: VllmReplica, listen: Any
) -> None:
    """Slots are free; two of the contexts fit at once at most."""
    async with backend(short_engine, listen) as rig, asyncio.timeout(4 * PATIENCE_S):
        bodies = {
            f"heavy-{number}": {
                "model": DEMO_MODEL_NAME,
                "messages": [
                    {"role": "user", "content": " ".join(random_words(random.Random(f"heavy {number}"), 700))}
                ],
                "max_tokens": 700,
                "ignore_eos": True,
            }
            for number in range(6)
        }
        watched = await watch(rig.url, short_engine.base_url, rig.client, bodies)

    watched.check()
    assert watched.states["waiting_for_memory"] > watched.states["waiting_for_slot"]
    assert max(seen.waiting for seen in watched.gateway) >= 4
