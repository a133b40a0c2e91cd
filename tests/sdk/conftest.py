"""A recording backend speaking enough of the OpenAI and sessions APIs, and a client for one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import autellix
from autellix import _backends

# Tests of other packages share this process: they get it as it was.
autellix.uninstrument()

CHAT = {
    "id": "chat-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}},
    ],
}
CHUNK = {
    "id": "chat-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": None}],
}


@dataclass
class Recording:
    """A backend on a port of its own; tests read what it saw and say how it shall behave."""

    is_autellix: bool = True
    heartbeat_s: float = 60.0
    is_forgetful: bool = False
    statuses: list[int] = field(default_factory=list)
    delay_s: float = 0.0
    calls: list[dict[str, str]] = field(default_factory=list)
    control: list[tuple[str, str, str]] = field(default_factory=list)
    credentials: list[str | None] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def by_content(self) -> dict[str, dict[str, str]]:
        """The headers of each call, by the text of its only message."""
        return {call["content"]: call for call in self.calls}

    def wait_for(self, method: str, part: str = "", count: int = 1) -> list[tuple[str, str, str]]:
        """Wait until the control API has seen `count` such requests, and return them."""
        deadline = time.monotonic() + 5
        while True:
            seen = [entry for entry in list(self.control) if entry[0] == method and part in entry[1]]
            if len(seen) >= count:
                return seen
            assert time.monotonic() < deadline, f"no {method} {part} among {self.control}"
            time.sleep(0.005)


def _make_handler(recording: Recording) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_DELETE(self) -> None:
            recording.control.append(("DELETE", self.path, ""))
            self._answer(204, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "/autellix/v1/" in self.path:
                self._control(body.decode())
            else:
                self._call(json.loads(body))

        def _control(self, body: str) -> None:
            recording.control.append(("POST", self.path, body))
            recording.credentials.append(self.headers.get("Authorization"))
            time.sleep(recording.delay_s)
            if not recording.is_autellix:
                self._answer(404, b'{"detail":"Not Found"}')
            elif self.path.endswith("/heartbeat"):
                self._answer(404 if recording.is_forgetful else 200, b"{}")
            else:
                started = {
                    "session_id": json.loads(body)["session_id"],
                    "heartbeat_s": recording.heartbeat_s,
                    "server": "autellix",
                    "version": "0",
                }
                self._answer(201, json.dumps(started).encode())

        def _call(self, body: dict[str, object]) -> None:
            seen = {name.lower(): value for name, value in self.headers.items()}
            messages = body.get("messages")
            seen["content"] = messages[0]["content"] if isinstance(messages, list) else ""
            recording.calls.append(seen)
            status = recording.statuses.pop(0) if recording.statuses else 200
            if status != 200:
                self._answer(status, b'{"error":{"message":"as told"}}')
            elif body.get("stream"):
                events = f"data: {json.dumps(CHUNK)}\n\n" * 3 + "data: [DONE]\n\n"
                self._answer(200, events.encode(), "text/event-stream")
            else:
                self._answer(200, json.dumps(CHAT).encode())

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture
def make_backend() -> Iterator[Callable[..., Recording]]:
    servers: list[_Server] = []

    def make(**behaviour: object) -> Recording:
        recording = Recording(**behaviour)  # type: ignore[arg-type]
        server = _Server(("127.0.0.1", 0), _make_handler(recording))
        recording.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return recording

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def backend(make_backend: Callable[..., Recording]) -> Recording:
    return make_backend()


@pytest.fixture
def sdk() -> Iterator[None]:
    """The client, switched on for this test only."""
    before = set(threading.enumerate())
    autellix.configure()
    autellix.instrument()
    yield
    autellix.uninstrument()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "autellix-control":
            thread.join(5)
            assert not thread.is_alive()
    _backends.backends.configure({})


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where scripts keep compiled modules: importing openai takes seconds without."""
    return str(tmp_path_factory.mktemp("bytecode"))


@pytest.fixture
def run_script(bytecode: str) -> Callable[..., str]:
    """Run a program in a process of its own; its output comes back."""
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}

    def run(script: str, *args: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *args],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **cache, **environment},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run
