"""Unmodified programs of real frameworks on the whole backend: gateway, real vLLM, and the DAG it recorded.

A recording holds no text, so the two DAGs are compared by shape: two calls are alike if their ancestors are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.programs import load, shapes
from tests.serving import serving_thread
from tests.waiting import PATIENCE_S

import autellix
from autellix_backend.assembly import create_app
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.settings import GatewaySettings, ObserveSettings, Settings
from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_lab.workload.loaders import load as load_traces

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    # AutoGen, of an engine that ends a tool call that it wscripted to make with the reason "stop".
    pytest.mark.filterwarnings("ignore:Finish reason mismatch"),
]

PROGRAMS = sorted(Path(__file__).parent.glob("*/programs/*.py"))
FRAMEWORKS = {"langchain": "langgraph", "autogen": "autogen_agentchat"}


@pytest.fixture
def recording(live_engine: Any, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    path = tmp_path / "calls.jsonl"
    settings = Settings(
        gateway=GatewaySettings(report_wait_s=5.0, strict_identity=True),
        observe=ObserveSettings(call_log=path),
        scheduler=SchedulerConfig(policy="atlas"),
    )
    with serving_thread(create_app(settings, live_engine)) as url:
        yield url, path


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_the_recorded_dag_is_the_programs(program: Path, recording: tuple[str, Path]) -> None:
    """One program, every call, and exactly the parents that its code gives them."""
    pytest.importorskip(FRAMEWORKS[program.parts[-3]])
    url, path = recording
    module = load(program)
    autellix.configure(url)
    autellix.instrument()
    try:
        module.run(base_url=f"{url}/v1", model=DEMO_MODEL_NAME)
    finally:
        autellix.uninstrument()
        autellix.configure()
    wait_for_calls(path, len(module.EXPECTED))
    [recorded] = load_traces(path)
    dag = {call.id: call.parents for call in recorded.calls}
    assert shapes(dag) == shapes(module.EXPECTED)


def wait_for_calls(path: Path, count: int) -> None:
    """Return when so many calls are logged; a thread of the gateway writes them."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or len(path.read_text(encoding="utf-8").splitlines()) < count:
        assert time.monotonic() < deadline, "calls are missing"
        time.sleep(0.05)
