"""The backend of a benchmark ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.other_processes import is_running
from tests.waiting import wait_until

from autellix_lab.bench.backend import BackendProcess

SERVER = (
    "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
)
OWNER = f"""
import pathlib, sys, time
from autellix_lab.bench.backend import BackendProcess
backend = BackendProcess("b", "demo", {{}}, pathlib.Path(sys.argv[1]))
backend._command = [sys.executable, "-c", {SERVER!r}, sys.argv[2]]
backend.launch()
time.sleep(600)
"""


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def wait_gone(pid: int) -> None:
    wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_benchmark_leaves_no_server(tmp_path: Path, death: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), str(pid_file)]) as owner:
        server = pid_in(pid_file)
        owner.send_signal(death)
    wait_gone(server)


def test_stopping_ends_the_server(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with BackendProcess("b", "demo", {}, tmp_path) as backend:
        backend._command = [sys.executable, "-c", SERVER, str(pid_file)]
        backend.launch()
        server = pid_in(pid_file)
        os.kill(server, 0)
    wait_gone(server)
