"""Fixtures: a process with real vLLM engines, and scenarios to play in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tests.waiting import PATIENCE_S

_HERE = Path(__file__).parent


class EngineWorker:
    """Talks to a worker process, one JSON line each way."""

    def __init__(self, script: Path, model: Path, log_path: Path) -> None:
        self._log_path = log_path
        paths = filter(None, [str(_HERE.parents[1]), os.environ.get("PYTHONPATH")])
        read_end, write_end = os.pipe()
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(write_end), str(model)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                # For what the tests share, on the release of vLLM that is chosen.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        os.close(write_end)
        self._replies: IO[str] = os.fdopen(read_end)
        self._unread = 0

    def run(self, scenario: dict[str, Any]) -> dict[str, Any]:
        """Play a scenario; a scenario that fails answers with its error."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(scenario).encode() + b"\n")
        self._process.stdin.flush()
        self._unread += 1
        while True:
            reply = self._replies.readline()
            if not reply:
                pytest.fail(f"the engine process died:\n{self._log_path.read_text()[-4000:]}")
            self._unread -= 1
            # A test that ran out of time has left its reply for the next one.
            if self._unread == 0:
                result: dict[str, Any] = json.loads(reply)
                return result

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._replies.close()


@pytest.fixture(scope="session")
def engine_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineWorker]:
    """Start the worker once: most of an engine's start is vLLM's imports."""
    pytest.importorskip("vllm")
    directory = tmp_path_factory.mktemp("engines")
    worker = EngineWorker(_HERE / "engine_worker.py", directory / "model", directory / "worker.log")
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineWorker]:
    """Start the process that plays scenes on vLLM's scheduler without a model."""
    pytest.importorskip("vllm")
    directory = tmp_path_factory.mktemp("scenes")
    worker = EngineWorker(_HERE / "scheduler_scenes.py", directory / "model", directory / "worker.log")
    yield worker
    worker.close()
