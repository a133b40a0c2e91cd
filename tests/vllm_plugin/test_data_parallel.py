"""A real vLLM server of two data-parallel ranks: both report to two gateways, whose sum is the engine.

Reports go to the gateway that the call names; snapshots go to both.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.report_links import SECRET, LinkedGateway, linked
from tests.waiting import until

from autellix_backend.engines.vllm_command import SCHEDULER_CLASS
from autellix_backend.reports.link import address_of_rank
from autellix_backend.reports.ranks import merge_ranks
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_lab.demo.model import build_demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

AT_ONCE = 24
RANK_SLOTS = 3
TOKENS = 48
GATEWAYS = ("g1", "g2")
START_S = 480.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # vLLM 0.33 wants a memory node for each rank, unless this is set.
    "VLLM_CPU_SIM_MULTI_NUMA": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "AUTELLIX_ENGINE_REPORT_SECRET": SECRET,
}


@pytest.fixture
def report_address() -> str:
    """Return an address for the first rank's reports, with a free port after it for the second's."""
    address = f"tcp://127.0.0.1:{free_port(companion_offset=1)}"
    assert address_of_rank(address, 1).rpartition(":")[2] == str(int(address.rpartition(":")[2]) + 1)
    return address


@pytest.fixture
def server(tmp_path: Path, report_address: str) -> Iterator[str]:
    pytest.importorskip("vllm")
    port = free_port()
    settings = {
        "scheduler": {"policy": "plas"},
        "report_address": report_address,
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(build_demo_model(tmp_path / "model")), "--served-model-name", "demo"),
        *("--host", "127.0.0.1", "--port", str(port), "--data-parallel-size", "2"),
        *("--max-num-seqs", str(RANK_SLOTS), "--max-model-len", "512"),
        *("--enforce-eager", "--dtype", "float32"),
        *("--scheduler-cls", SCHEDULER_CLASS, "--additional-config", json.dumps({"autellix": settings})),
    ]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + START_S
        while not is_healthy(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"the server did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ask(url: str, number: int) -> int:
    """Make a call, in turn of the one and the other gateway; return its output tokens."""
    identity = {
        "autellix_program": f"p{number}",
        "autellix_call": f"c{number}",
        "autellix_gateway": GATEWAYS[number % 2],
    }
    body = {
        "model": "demo",
        "prompt": f"number {number}",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0.0,
        "vllm_xargs": identity,
    }
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


class Heard:
    """The messages of the engine that one end has received."""

    def __init__(self) -> None:
        self.ranks: dict[int, EngineSnapshot] = {}
        self.has_seen_both_busy = False
        """Whether more calls ran at once than one rank has slots."""
        self.calls: set[str] = set()

    def hear(self, message: bytes) -> None:
        if EngineSnapshot.is_one(message):
            snapshot = EngineSnapshot.from_bytes(message)
            self.ranks[snapshot.rank] = snapshot
            running = merge_ranks(list(self.ranks.values())).running
            self.has_seen_both_busy |= running > RANK_SLOTS
        else:
            self.calls.add(EngineReport.from_bytes(message).call_id)

    def is_whole(self, calls: set[str]) -> bool:
        """Whether these calls have reported, and both ranks have said that they are idle."""
        is_idle = not any(rank.running for rank in self.ranks.values())
        return self.calls == calls and len(self.ranks) == 2 and is_idle

    def check(self) -> None:
        engine = merge_ranks(list(self.ranks.values()))
        assert sorted(self.ranks) == [0, 1]
        assert [rank.slots for rank in self.ranks.values()] == [RANK_SLOTS] * 2
        assert (engine.slots, engine.running, engine.waiting) == (2 * RANK_SLOTS, 0, 0)
        assert engine.kv_total_blocks == 2 * self.ranks[0].kv_total_blocks


async def play(url: str, gateways: Sequence[LinkedGateway]) -> list[set[str]]:
    """Make calls until both gateways have seen both ranks busy; return the calls of each."""
    heard = [Heard(), Heard()]
    loop = asyncio.get_running_loop()
    numbers = itertools.count()
    made: list[set[str]] = [set(), set()]

    async def keep_asking(pool: ThreadPoolExecutor) -> None:
        while not all(each.has_seen_both_busy for each in heard):
            number = next(numbers)
            assert await loop.run_in_executor(pool, ask, url, number) == TOKENS
            made[number % 2].add(f"c{number}")
            hear()

    def hear() -> None:
        for gateway, each in zip(gateways, heard, strict=True):
            while gateway.messages:
                each.hear(gateway.messages.pop(0))

    def is_told() -> bool:
        hear()
        return all(each.is_whole(calls) for each, calls in zip(heard, made, strict=True))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        await asyncio.gather(*(keep_asking(pool) for _ in range(AT_ONCE)))
        await until(is_told)
    for each in heard:
        each.check()
    return made


async def test_ranks_report_beside_each_other(server: str, report_address: str) -> None:
    addresses = [address_of_rank(report_address, rank) for rank in range(2)]
    one, other = (linked(*addresses, name=name) for name in GATEWAYS)
    async with one as first, other as second:
        await until(lambda: sorted(first.client.facts) == sorted(second.client.facts) == [0, 1])
        assert all(await play(server, [first, second]))
