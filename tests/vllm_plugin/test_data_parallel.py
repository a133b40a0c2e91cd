"""A real vLLM server of two data-parallel ranks: both report, and the gateway's sum is the engine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autellix_backend.engines.vllm_command import SCHEDULER_CLASS
from autellix_backend.reports.ranks import merge_ranks
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_lab.demo.model import build_demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

CALLS = 24
START_S = 480.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
}


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "reports.sock"))
        receiver.settimeout(20.0)
        yield receiver


@pytest.fixture
def server(tmp_path: Path, reports: socket.socket) -> Iterator[str]:
    pytest.importorskip("vllm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"scheduler": {"policy": "plas"}, "report_socket": reports.getsockname()}
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(build_demo_model(tmp_path / "model")), "--served-model-name", "demo"),
        *("--host", "127.0.0.1", "--port", str(port), "--data-parallel-size", "2"),
        *("--max-num-seqs", "3", "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"),
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
    """Make a call; return its output tokens."""
    body = {
        "model": "demo",
        "prompt": f"number {number}",
        "max_tokens": 48,
        "ignore_eos": True,
        "temperature": 0.0,
        "vllm_xargs": {"autellix_program": f"p{number}", "autellix_call": f"c{number}"},
    }
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def test_ranks_report_beside_each_other(server: str, reports: socket.socket) -> None:
    ranks: dict[int, EngineSnapshot] = {}
    busiest = 0
    reported: set[str] = set()
    with ThreadPoolExecutor(CALLS) as pool:
        answers = [pool.submit(ask, server, number) for number in range(CALLS)]
        while len(reported) < CALLS or len(ranks) < 2 or any(rank.running for rank in ranks.values()):
            datagram = reports.recv(1 << 16)
            if EngineSnapshot.is_one(datagram):
                snapshot = EngineSnapshot.from_bytes(datagram)
                ranks[snapshot.rank] = snapshot
                busiest = max(busiest, merge_ranks(list(ranks.values())).running)
            else:
                reported.add(EngineReport.from_bytes(datagram).call_id)
        assert [answer.result() for answer in answers] == [48] * CALLS

    engine = merge_ranks(list(ranks.values()))
    assert sorted(ranks) == [0, 1]
    assert [rank.slots for rank in ranks.values()] == [3, 3]
    assert (engine.slots, engine.running, engine.waiting) == (6, 0, 0)
    assert engine.kv_total_blocks == 2 * ranks[0].kv_total_blocks
    # More calls ran at once than one rank has slots.
    assert busiest > 3
