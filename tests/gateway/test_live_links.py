"""A real vLLM with our scheduler, run by others, before two gateways: as if each had started it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest
from tests.drills.processes import Server, Spec
from tests.ports import free_port
from tests.waiting import until

from autellix_backend.engines.vllm_command import SCHEDULER_CLASS, VLLM_SERVER, environment_defaults
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

START_S = 600.0
SECRET = "the secret of this cluster"
SECRET_VARIABLE = "AUTELLIX_ENGINE_REPORT_SECRET"
SLOTS = 2
OFFSET = 1000
LONG, SHORT = 150, 8
HOLDING = 1500
"""Output tokens of a call that lasts for several of the engine's snapshots."""
CALL_S = 600.0
"""More than such a call takes that waits for another one, on a busy machine."""
WAITING = "waiting_for_slot"


def engine_spec(model: Path, folder: Path) -> Spec:
    port = free_port(OFFSET)
    section = {"scheduler": {"policy": "plas"}, "report_address": f"tcp://127.0.0.1:{port + OFFSET}"}
    options = ["--model", str(model), "--served-model-name", DEMO_MODEL_NAME, "--enforce-eager"]
    options += ["--scheduler-cls", SCHEDULER_CLASS, "--additional-config", json.dumps({"autellix": section})]
    return Spec(
        name="vllm",
        command=[
            *VLLM_SERVER,
            *options,
            "--max-num-seqs",
            str(SLOTS),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        port=port,
        health_path="/health",
        log=folder / "vllm.log",
        environment={**environment_defaults(str(model), is_cpu=True), **os.environ, SECRET_VARIABLE: SECRET},
        start_s=START_S,
    )


def gateway_spec(name: str, engine: Server, folder: Path, secret: str = SECRET) -> Spec:
    port = free_port()
    command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--engine", engine.url]
    return Spec(
        name=name,
        command=[*command, "--port", str(port), "--policy", "plas"],
        port=port,
        health_path="/healthz",
        log=folder / f"{name}.log",
        environment={SECRET_VARIABLE: secret, "AUTELLIX_CACHE_DIR": str(folder)},
        start_s=60.0,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("links")


@pytest.fixture(scope="module")
def engine(demo_model: Path, folder: Path) -> Iterator[Server]:
    pytest.importorskip("vllm")
    server = Server(engine_spec(demo_model, folder))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def gateways(engine: Server, folder: Path) -> Iterator[list[Server]]:
    servers = [Server(gateway_spec(f"gateway-{number}", engine, folder)) for number in range(2)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.await_ready()
        yield servers
    finally:
        for server in servers:
            server.kill()


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_S)) as session:
        yield session


async def chat(session: aiohttp.ClientSession, gateway: Server, program: str, tokens: int) -> dict[str, Any]:
    body = {
        "model": DEMO_MODEL_NAME,
        "messages": [{"role": "user", "content": f"I am {program}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    headers = {"X-Autellix-Program-ID": program}
    async with session.post(gateway.url + "/v1/chat/completions", json=body, headers=headers) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        found: dict[str, Any] = answer["autellix"]
        return found


async def get(session: aiohttp.ClientSession, gateway: Server, path: str) -> Any:
    async with session.get(f"{gateway.url}{path}") as response:
        return await response.json()


async def reports(session: aiohttp.ClientSession, gateway: Server, state: str) -> None:
    """Wait until a gateway says this of the engine's reports."""

    async def says() -> bool:
        [row] = (await get(session, gateway, "/autellix/v1/engines"))["engines"]
        return bool(row["reporting"] == state)

    await until(says)


async def test_both_gateways_say_what_the_engine_is(gateways: list[Server]) -> None:
    async with client() as session:
        for gateway in gateways:
            await reports(session, gateway, "up")
            [row] = (await get(session, gateway, "/autellix/v1/engines"))["engines"]
            assert (row["policy"], row["slots"] or SLOTS) == ("plas", SLOTS)
            assert row["engine_version"].startswith("0.3")
            ready = await get(session, gateway, "/readyz")
            assert ready == {
                "status": "ready",
                "engines": {"remote-0": "up"},
                "ordered_by": {"remote-0": "engine"},
            }
            assert "remote-0: Autellix scheduler" in gateway.log_tail()
            assert "(policy plas)" in gateway.log_tail()


async def test_receipts_have_the_engines_own_numbers(gateways: list[Server]) -> None:
    async with client() as session:
        calls = [
            chat(session, gateway, f"receipt-{number}", SHORT) for gateway in gateways for number in range(4)
        ]
        for receipt in await asyncio.gather(*calls):
            assert receipt["estimated"] is False
            assert receipt["output_tokens"] == SHORT
            assert receipt["engine_steps"] >= SHORT
            assert receipt["prompt_tokens"] > 0
            assert receipt["service_s"] > 0


async def test_short_programs_do_not_wait_for_long_ones(gateways: list[Server]) -> None:
    """As with an engine of the gateway's own; and while they wait, `ps` and `why` show it.

    The engine's own numbers judge, since on a busy machine this process may stand still for seconds.
    """
    seen: list[dict[str, Any]] = []
    open_shorts = 4
    waits: list[float] = []
    long_calls: list[float] = []

    async def long(at: int) -> None:
        while open_shorts:
            receipt = await chat(session, gateways[at % 2], f"report-{at}", HOLDING)
            long_calls.append(receipt["service_s"])

    async def short(at: int) -> None:
        nonlocal open_shorts
        for _ in range(3):
            receipt = await chat(session, gateways[at % 2], f"react-{at}", SHORT)
            waits.append(receipt["wait_s"])
        open_shorts -= 1

    async def look() -> bool:
        """Whether `ps` shows a program waiting at a gateway, whose calls `why` shows too."""
        for gateway in gateways:
            programs = (await get(session, gateway, "/autellix/v1/programs"))["programs"]
            for program_id in [each["program_id"] for each in programs if each["state"] == WAITING]:
                why = await get(session, gateway, f"/autellix/v1/programs/{program_id}/why")
                seen.extend(
                    call for call in why.get("calls", ()) if call["state"] == WAITING and call["position"]
                )
        return bool(seen)

    async with client() as session:
        # Twice as many as slots, so that two always wait.
        running = [asyncio.create_task(long(at)) for at in range(4)]
        await until(look)
        await asyncio.gather(*running, *map(short, range(4)))
    assert all(call["position"] is not None for call in seen)
    # In order of arrival each would wait for a slot until some long call has ended.
    assert median(waits) < min(long_calls) / 4


async def test_a_killed_gateway_leaves_the_other_alone_and_returns(gateways: list[Server]) -> None:
    one, other = gateways
    async with client() as session:
        running = asyncio.create_task(chat(session, other, "survivor", LONG))
        one.kill()
        assert (await running)["estimated"] is False
        await asyncio.to_thread(one.start)
        await reports(session, one, "up")
        assert (await chat(session, one, "back", SHORT))["estimated"] is False


async def test_a_wrong_secret_is_said_by_both_sides(engine: Server, folder: Path) -> None:
    stranger = Server(gateway_spec("stranger", engine, folder, secret="some other secret"))
    try:
        await asyncio.to_thread(stranger.start)
        async with client() as session:
            await reports(session, stranger, "refused")
            receipt = await chat(session, stranger, "p", SHORT)
            assert receipt["estimated"] is True
            assert "refuses our secret" in stranger.log_tail()
            assert "with another engine.report_secret" in engine.spec.log.read_text()
    finally:
        stranger.kill()


async def test_a_killed_engine_returns_to_both(engine: Server, gateways: list[Server]) -> None:
    async with client() as session:
        engine.kill()
        for gateway in gateways:

            async def has_gone(gateway: Server = gateway) -> bool:
                [row] = (await get(session, gateway, "/autellix/v1/engines"))["engines"]
                return bool(row["reporting"] != "up")

            await until(has_gone)
        await asyncio.to_thread(engine.start)
        for gateway in gateways:
            await reports(session, gateway, "up")

            async def is_ready(gateway: Server = gateway) -> bool:
                return bool((await get(session, gateway, "/readyz")).get("status") == "ready")

            await until(is_ready)
            assert (await chat(session, gateway, "again", SHORT))["estimated"] is False
