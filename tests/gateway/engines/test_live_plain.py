"""A real vLLM without our scheduler: the gateway learns its batch size, and orders the calls that wait."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest
from tests.drills.processes import Server, Spec
from tests.gateway.test_live_links import CALL_S, START_S, client
from tests.ports import free_port

from autellix_backend.engines.probe import read_queue
from autellix_backend.engines.vllm_command import VLLM_SERVER, environment_defaults
from autellix_backend.settings import child_environment
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SLOTS = 4
PROGRAMS = 16
MAX_WAITING = 4
READINGS = 12
"""With a learned bound and calls that wait for it."""


@pytest.fixture(scope="module")
def plain(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("vllm")
    port = free_port()
    options = ["--model", str(demo_model), "--served-model-name", DEMO_MODEL_NAME, "--enforce-eager"]
    server = Server(
        Spec(
            name="vllm",
            command=[*VLLM_SERVER, *options, "--max-num-seqs", str(SLOTS), "--port", str(port)],
            port=port,
            health_path="/health",
            log=tmp_path_factory.mktemp("plain") / "vllm.log",
            environment=child_environment(environment_defaults(str(demo_model), is_cpu=True)),
            start_s=START_S,
        )
    )
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def before_it(plain: Server, tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    serve = [sys.executable, "-m", "autellix_backend.cli.main", "serve", "--engine", plain.url]
    server = Server(
        Spec(
            name="gateway",
            command=[*serve, "--port", str(port)],
            port=port,
            health_path="/healthz",
            log=tmp_path / "gateway.log",
            environment={"AUTELLIX_CACHE_DIR": str(tmp_path)},
            start_s=60.0,
        )
    )
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def run_program(session: aiohttp.ClientSession, url: str, number: int, seen: asyncio.Event) -> None:
    """Make calls one after the other until enough was seen."""
    body = {
        "model": DEMO_MODEL_NAME,
        "messages": [{"role": "user", "content": f"I am program {number}."}],
        "max_tokens": 300,
        "ignore_eos": True,
    }
    headers = {"X-Autellix-Program-ID": f"program-{number}"}
    while not seen.is_set():
        async with session.post(url + "/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200


async def until_known(session: aiohttp.ClientSession, gateway: Server) -> None:
    """Wait until the gateway knows that this engine reports nothing."""
    async with asyncio.timeout(CALL_S):
        while (
            "ordered by the gateway (boost) once calls wait there"
            not in (row := await engine_of(session, gateway))["scheduling"]
        ):
            assert "has not answered yet" in row["scheduling"]
            await asyncio.sleep(0.25)


async def engine_of(session: aiohttp.ClientSession, gateway: Server) -> dict[str, Any]:
    async with session.get(gateway.url + "/autellix/v1/engines") as response:
        [row] = (await response.json())["engines"]
        found: dict[str, Any] = row
        return found


async def test_the_gateway_holds_the_calls_that_find_no_slot_in_a_plain_vllm(
    plain: Server, before_it: Server
) -> None:
    async with client() as session:
        await until_known(session, before_it)
        held: deque[tuple[int, int]] = deque(maxlen=READINGS)
        """Running and waiting calls in the engine, while calls wait here for a learned bound."""
        seen = asyncio.Event()
        programs = asyncio.gather(
            *(run_program(session, before_it.url, number, seen) for number in range(PROGRAMS))
        )
        # Calls that were sent before the bound was learned wait in the engine at first.
        async with asyncio.timeout(CALL_S):
            while not seen.is_set():
                row, lengths = await asyncio.gather(
                    engine_of(session, before_it), read_queue(plain.url, 10.0)
                )
                assert lengths is not None
                if row["max_in_flight"] is not None and row["queued_calls"] > 2:
                    assert f"at most {row['max_in_flight']} calls in flight (learned)" in row["scheduling"]
                    held.append((lengths.running, lengths.waiting))
                if len(held) == READINGS and are_held(held):
                    seen.set()
                await asyncio.sleep(0.25)
        await programs


def are_held(readings: Collection[tuple[int, int]]) -> bool:
    """Return whether the engine mostly has a call in each slot, and few that wait."""
    running = median(running for running, _ in readings)
    return running == SLOTS and median(waiting for _, waiting in readings) <= MAX_WAITING
