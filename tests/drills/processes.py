"""Processes that a drill starts, kills and starts again on the same address."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_S = 60.0
LOG_TAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How a server is started."""

    name: str
    command: Sequence[str]
    port: int
    health_path: str
    log: Path
    environment: Mapping[str, str]
    start_s: float


class Server:
    """A server in a process group of its own."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.url = f"http://127.0.0.1:{spec.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.spec.name

    def launch(self) -> None:
        """Start it."""
        with self.spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.spec.environment},
                start_new_session=True,
            )

    def await_ready(self) -> None:
        """Return once it serves."""
        deadline = time.monotonic() + self.spec.start_s
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, f"{self.name} ended: {self.log_tail()}"
            assert time.monotonic() < deadline, f"{self.name} did not start in time: {self.log_tail()}"
            time.sleep(0.05)

    def start(self) -> None:
        """Start it, and return once it serves."""
        self.launch()
        self.await_ready()

    def kill(self) -> None:
        """Kill it and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_S)
            self._process = None

    def stop(self) -> int:
        """Ask it to end; return its exit code once it has."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_S)
        self._process = None
        return code

    def sockets(self) -> int:
        """Return how many sockets it has open."""
        assert self._process is not None
        links = Path(f"/proc/{self._process.pid}/fd").iterdir()
        return sum(_target(link).startswith("socket:") for link in links)

    def tasks(self) -> int:
        """Return how many tasks its event loop has; it must be a gateway of the drills."""
        assert self._process is not None
        told = len(self._told_tasks())
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STOP_S
        while len(counts := self._told_tasks()) == told:
            assert time.monotonic() < deadline, f"{self.name} does not tell of its tasks"
            time.sleep(0.01)
        return int(counts[-1])

    def log_tail(self) -> str:
        """Return the end of its output."""
        return self.spec.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]

    def _told_tasks(self) -> list[str]:
        return re.findall(r"^tasks: (\d+)$", self.spec.log.read_text(encoding="utf-8"), re.MULTILINE)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self.spec.health_path, timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        # It was closed meanwhile.
        return ""
