"""The alert rules fire on what they are for, by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOL = shutil.which("promtool")
FOLDER = Path(__file__).parent


@pytest.mark.skipif(TOOL is None, reason="promtool, of Debian's package prometheus, is not installed")
@pytest.mark.parametrize(
    "command", [["check", "rules", "../../deploy/grafana/alerts.yaml"], ["test", "rules", "alerts_test.yaml"]]
)
def test_alerts_fire(command: list[str]) -> None:
    assert TOOL is not None
    found = subprocess.run([TOOL, *command], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
