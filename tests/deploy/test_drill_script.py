"""`scripts/chart-drill` itself: what it leaves when somebody ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, wait_until

from autellix_lab.demo.model import VERSION
from autellix_lab.demo.model_folder import MARKER

SCRIPT = Path(__file__).parents[2] / "scripts" / "chart-drill"


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a drill that waits for scenes, with a model that nobody loads."""
    pytest.importorskip("helm_python", reason="Helm is not installed: `helm-python-sdk`")
    model = tmp_path / "model"
    model.mkdir()
    identity = {"model": "demo-model", "version": VERSION, "seed": 0}
    (model / MARKER).write_text(json.dumps(identity))
    process = subprocess.Popen(
        [str(SCRIPT), "--model", str(model), "--scenes", "-"],
        stdin=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert process.stdin is not None
    process.stdin.close()


def those_that_name(path: Path) -> list[str]:
    """Return the command lines of all processes that name a path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text().replace("\0", " "))
    return [line for line in found if str(path) in line]


@pytest.mark.usefixtures("can_make_namespaces", "redis_program")
def test_sigterm_ends_all_of_it(drill: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Its namespaces, their processes, and its folder."""
    wait_until(lambda: drill.poll() is not None or list(tmp_path.glob("drill-*/disks")))
    assert drill.poll() is None
    assert those_that_name(tmp_path)
    drill.send_signal(signal.SIGTERM)
    assert drill.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert list(tmp_path.glob("drill-*")) == []
    assert those_that_name(tmp_path) == []
