"""The command for a card works over the stand-in, and judges what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kernels.conftest import ROOT, Folder

pytestmark = pytest.mark.timeout(600)


def test_the_dry_run_checks_and_reports(shared: Folder, tmp_path: Path) -> None:
    """Every contestant is checked in every cell, and the report is written."""
    report = tmp_path / "report.json"
    command = [str(ROOT / "benchmarks" / "swap_gpu.py"), "--stand-in", "--json", str(report)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = json.loads(report.read_text())["lines"]
    results = [one for one in lines if one["kind"] == "result"]
    assert {one["is_checked"] for one in results} == {True}
    assert len(results) == 2 * 4 * 7
    staged = {one["blocks"]: one["transfers"] for one in results if one["contestant"] == "ours, staged"}
    assert staged == {1: 1, 4: 1}
    assert len([one for one in lines if one["kind"] == "slowdown"]) == 2 * 7
    assert len([one for one in lines if one["kind"] == "behind"]) == 2
    assert "A dry run" in done.stdout
