"""The examples before a real gateway, which counts their programs and ends them by the client's word."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autellix_backend", reason="the client's tests run without the gateway, too")

from tests.conftest import LIVE_STARTUP_S
from tests.examples.runner import run
from tests.examples.test_examples import TWO_QUESTIONS, needs
from tests.fakes.engine import FakeEngine
from tests.serving import serving_thread
from tests.waiting import wait_until

from autellix_backend.assembly import create_app
from autellix_backend.console.http.history import HISTORY_PATH
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import EngineSettings, Settings
from autellix_wire.paths import PROGRAMS_PATH


def programs_at_a_gateway(name: str, *, code: str | None = None, **environ: str) -> list[tuple[str, int]]:
    """Run an example before a gateway, and return the programs that have ended there: name and calls."""
    engine = FakeEngine()
    with serving_thread(create_app(Settings(), engine), engine) as url:
        run(name, code, f"{url}/v1", environ)
        # Its end is reported in the background.
        wait_until(lambda: not _get(f"{url}{PROGRAMS_PATH}")["programs"])
        ended = _get(f"{url}{HISTORY_PATH}?limit=1000")["programs"]
    return sorted((program["name"], program["finished_calls"]) for program in ended)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url) as response:
        return json.load(response)


@pytest.mark.parametrize(
    ("name", "programs"),
    [
        ("openai_chat", [("research", 3)]),
        ("streaming", [("story", 2)]),
        ("threads", [("review", 5)]),
        ("chat_sessions", [("chat", 3)]),
        ("offline_batch", [("digest", 2)] * 5),
        pytest.param("langgraph_fanout", [("report", 5)], marks=needs("langgraph", "langchain_openai")),
        pytest.param("autogen_team", [("essay", 4)], marks=needs("autogen_agentchat", "autogen_ext")),
        pytest.param("fastapi_service", [("POST /questions", 3)] * 2, marks=needs("fastapi", "uvicorn")),
    ],
)
def test_a_gateway_counts_the_programs(name: str, programs: list[tuple[str, int]]) -> None:
    """Unlike the recording backend it ends them, by the client's word."""
    code = TWO_QUESTIONS if name == "fastapi_service" else None
    assert programs_at_a_gateway(name, code=code, DOCUMENTS="5") == programs


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_grpo(demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step the engine answers with other weights, which it has read while it runs."""
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    engine = EngineSettings(
        model=str(demo_model), state_dir=tmp_path, max_num_seqs=4, startup_timeout_s=LIVE_STARTUP_S
    )
    replica = VllmReplica(Settings(engine=engine))
    asyncio.run(replica.start())
    try:
        with serving_thread(create_app(Settings(), replica)) as url:
            before = _logprob(url, str(demo_model))
            assert abs(_logprob(url, str(demo_model)) - before) < 1e-4
            sizes = {"STEPS": "1", "GROUPS": "1", "SIZE": "4"}
            run("grpo", None, f"{url}/v1", {"MODEL": str(demo_model), **sizes})
            assert abs(_logprob(url, str(demo_model)) - before) > 1e-3
            groups = [row["group"] for row in _get(f"{url}{HISTORY_PATH}?group=0.0")["programs"]]
            assert groups == ["0.0"] * 4
    finally:
        asyncio.run(replica.stop())


def _logprob(url: str, model: str) -> float:
    """Return the logarithm of the probability of the likeliest first token."""
    body = {"model": model, "prompt": "Queues", "max_tokens": 1, "temperature": 0, "logprobs": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return float(json.load(response)["choices"][0]["logprobs"]["token_logprobs"][0])


def test_a_gateway_counts_the_rollouts() -> None:
    found = programs_at_a_gateway("rl_rollouts")
    assert len(found) == 24
    assert {name for name, _ in found} == {"rollout"}
