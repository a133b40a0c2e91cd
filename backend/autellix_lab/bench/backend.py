"""One `autellix serve` child process, started from a settings file and ended with its parent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autellix_backend.engines import guard
from autellix_backend.errors import CommandError

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
GUARD_MARGIN_S = 5.0
POLL_S = 0.2
_READY_URL = re.compile(r"(http://[\w.\-]+:\d+)/v1\b")
_TAIL_LINES = 20


class BackendError(CommandError):
    """A backend did not start, or died; carries the end of its log."""

    exit_code = 1


class BackendProcess:
    """One running `autellix serve`, as a context manager that always stops it."""

    def __init__(
        self, name: str, model: str, settings: Mapping[str, Mapping[str, Any]], out_dir: Path
    ) -> None:
        self.name = name
        self.log_path = out_dir / f"backend-{name}.log"
        self.settings_path = out_dir / f"backend-{name}.toml"
        self.settings_path.write_text(to_toml(settings), encoding="utf-8")
        self._command = [sys.executable, "-m", "autellix_backend.cli.main", "serve", model]
        self._command += ["--config", str(self.settings_path)]
        self._process: subprocess.Popen[bytes] | None = None
        self.base_url = ""

    def __enter__(self) -> BackendProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start the child without waiting for it."""
        self._process = guard.start(self._command, STOP_TIMEOUT_S, self.log_path)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the child has named its address and answers there.

        Raises:
            BackendError: if it dies or takes longer.
        """
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise BackendError(
                    f"backend {self.name} ended with {self._process.returncode}\n{self.log_tail()}"
                )
            found = _READY_URL.search(self._log())
            if found and _answers(found.group(1) + "/readyz"):
                self.base_url = found.group(1)
                return
            time.sleep(POLL_S)
        raise BackendError(f"backend {self.name} was not ready after {timeout_s:g} s\n{self.log_tail()}")

    def stop(self) -> None:
        """End the child and wait for it; may be called twice."""
        if self._process is None:
            return
        # Its guard ends it when this pipe closes, as when this process dies.
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S + GUARD_MARGIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def model(self) -> str:
        """Ask the backend for the name of its model."""
        with urllib.request.urlopen(self.base_url + "/v1/models", timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])

    def log_tail(self) -> str:
        """Return the last lines of the child's log."""
        return "\n".join(self._log().splitlines()[-_TAIL_LINES:])

    def _log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        return ""


def to_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections of plain values as TOML, in which all values but infinity look as in JSON."""
    lines: list[str] = []
    for section, values in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    return "inf" if value == math.inf else json.dumps(value)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
