"""A small chart drill with real vLLM: the rendered chart as processes, each pod in a network of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 1000.0


@pytest.fixture
def _may_play_engines(can_make_namespaces: None) -> None:
    """Skip the test where there is no engine, or where gateways would hide their Python."""
    pytest.importorskip("vllm")
    pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    if Path(sys.prefix).resolve().is_relative_to("/tmp"):
        pytest.skip("a pod has a /tmp of its own, and this Python is below it")


@pytest.mark.usefixtures("_may_play_engines", "redis_program")
def test_the_chart_is_played(tmp_path: Path) -> None:
    """Two gateways and two engines answer, and one of each is replaced without losing a call."""
    rows = tmp_path / "rows.json"
    command = [str(ROOT / "scripts" / "chart-drill"), "--engines", "2", "--json", str(rows)]
    with (tmp_path / "log").open("wb") as log:
        drill = subprocess.Popen(
            [*command, "--scenes", "start", "calls", "commands", "replace"],
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
    try:
        code = drill.wait(LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(drill.pid, signal.SIGKILL)
    told = (tmp_path / "log").read_text()[-4000:]
    assert rows.exists(), told
    assert [row for row in json.loads(rows.read_text()) if not row["holds"]] == [], told
    assert code == 0
