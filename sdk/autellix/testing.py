"""A recording backend for tests: it answers like Autellix and OpenAI, and records who made which call.

    with autellix.testing.RecordingBackend() as backend:
        run_my_agent(base_url=backend.url)
    assert backend.dag() == {"plan": (), "search": ("plan",), "answer": ("search",)}

The answers are canned; `answer` scripts them. It needs no model and no network.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType, TracebackType
from typing import Any

from autellix._answers import answer_of, stream_of
from autellix_wire import headers as names
from autellix_wire.ids import parse_parents
from autellix_wire.paths import API_PREFIX
from autellix_wire.sessions import SessionStarted

__all__ = ["RecordedCall", "RecordingBackend", "tool_call"]

Answer = Callable[[dict[str, Any]], str | dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One received call; a field is None where its header is absent."""

    path: str
    headers: Mapping[str, str]
    """By lower-case name, without the proof of the session, which is a secret."""
    body: Mapping[str, Any]
    content: str
    """The text of the last message, prompt or input."""

    def header(self, name: str) -> str | None:
        """Return a header by its name in any case."""
        return self.headers.get(name.lower())

    @property
    def program_id(self) -> str | None:
        """The program's id."""
        return self.header(names.PROGRAM_ID)

    @property
    def program_name(self) -> str | None:
        """The program's name."""
        return self.header(names.PROGRAM_NAME)

    @property
    def session_id(self) -> str | None:
        """The session's id."""
        return self.header(names.SESSION_ID)

    @property
    def thread_id(self) -> str | None:
        """The thread's number."""
        return self.header(names.THREAD_ID)

    @property
    def thread_name(self) -> str | None:
        """The thread's name."""
        return self.header(names.THREAD_NAME)

    @property
    def call_id(self) -> str | None:
        """The call's id; its retries have the same."""
        return self.header(names.CALL_ID)

    @property
    def parents(self) -> tuple[str, ...] | None:
        """The ids of the calls that it depends on: empty for a root, None if unknown."""
        return parse_parents(self.header(names.PARENT_IDS), names.PARENT_IDS)


@dataclass
class RecordingBackend:
    """A backend on a port of its own, as a context manager; its fields may change while it serves."""

    answer: Answer = field(default=lambda _body: "hello")
    """Returns the answer to a body: a text, or a message such as `tool_call` returns."""
    is_autellix: bool = True
    heartbeat_s: float = 60.0
    statuses: list[int] = field(default_factory=list)
    """The statuses of the next calls; then 200."""
    control_statuses: list[int] = field(default_factory=list)
    """The statuses of the next POSTs to the sessions API; after them, it answers as an Autellix backend."""
    control_delay_s: float = 0.0
    response_headers: dict[str, str] = field(default_factory=dict)
    """Further headers of the answers to calls."""
    recorded: list[RecordedCall] = field(default_factory=list)
    control: list[tuple[str, str, str]] = field(default_factory=list)
    """Requests of the sessions API: method, path, body."""
    credentials: list[str | None] = field(default_factory=list)
    """The API key of each POST to the sessions API, as its header has it."""
    _server: _RecordingServer | None = None

    def __enter__(self) -> RecordingBackend:
        self._server = _RecordingServer(("127.0.0.1", 0), self)
        threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="autellix-recording", daemon=True
        ).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def port(self) -> int:
        """The port that it listens on.

        Raises:
            RuntimeError: outside of its `with` block.
        """
        if self._server is None:
            raise RuntimeError("the recording backend is not running: enter it with `with`")
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The `base_url` for clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    def programs(self) -> dict[str | None, list[RecordedCall]]:
        """Return the calls by program id, each in the order of arrival."""
        found: dict[str | None, list[RecordedCall]] = {}
        for call in list(self.recorded):
            found.setdefault(call.program_id, []).append(call)
        return found

    def dag(self) -> dict[str, tuple[str, ...] | None]:
        """Return the contents of each call's parents by the call's content; contents must be unique."""
        contents = {call.call_id: call.content for call in self.recorded}
        return {
            call.content: None
            if call.parents is None
            else tuple(sorted(contents.get(parent, parent) for parent in call.parents))
            for call in self.recorded
        }

    def wait_for(self, method: str, part: str = "", count: int = 1) -> list[tuple[str, str, str]]:
        """Wait until enough requests of the sessions API have a method and a part of the path; return them.

        Raises:
            TimeoutError: after thirty seconds.
        """
        deadline_s = time.monotonic() + 30
        while True:
            seen = [entry for entry in list(self.control) if entry[0] == method and part in entry[1]]
            if len(seen) >= count:
                return seen
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no {method} {part} among {self.control}")
            time.sleep(0.005)


def tool_call(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a message that calls tools, each given by its name and arguments."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"tool-{number}-{name}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ],
    }


class _RecordingServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], backend: RecordingBackend) -> None:
        super().__init__(address, _Handler)
        self.backend = backend

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless it is that the client has left."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _RecordingServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass

    def _answer(
        self,
        status: int,
        body: bytes,
        kind: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.server.backend.is_autellix:
            self.send_header(names.VERSION, "0")
            for name, value in {**self.server.backend.response_headers, **headers}.items():
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path.endswith("/models"):
            model = {"id": "recording", "object": "model", "created": 1, "owned_by": "autellix"}
            self._answer(200, json.dumps({"object": "list", "data": [model]}).encode())
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def do_DELETE(self) -> None:
        self.server.backend.control.append(("DELETE", self.path, ""))
        self._answer(204, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if API_PREFIX in self.path:
            self._control(body)
        else:
            self._call(json.loads(body))

    def _control(self, body: bytes) -> None:
        backend = self.server.backend
        backend.control.append(("POST", self.path, body.decode()))
        keys = (self.headers.get(name) for name in ("Authorization", "x-api-key", "api-key"))
        backend.credentials.append(next((key for key in keys if key), None))
        time.sleep(backend.control_delay_s)
        if backend.control_statuses:
            self._answer(backend.control_statuses.pop(0), b"{}")
        elif not backend.is_autellix:
            self._answer(404, b'{"detail":"Not Found"}')
        else:
            started = SessionStarted(
                session_id=json.loads(body)["session_id"], heartbeat_s=backend.heartbeat_s, version="0"
            )
            self._answer(201, started.to_bytes())

    def _call(self, body: dict[str, Any]) -> None:
        backend = self.server.backend
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers.pop(names.SESSION_PROOF.lower(), None)
        call = RecordedCall(path=self.path, headers=headers, body=body, content=_content(body))
        backend.recorded.append(call)
        status = backend.statuses.pop(0) if backend.statuses else 200
        if status != 200:
            self._answer(status, b'{"error":{"message":"scripted"}}')
            return
        answer = backend.answer(body)
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        path = self.path.partition("?")[0]
        receipt = _receipt(call) if backend.is_autellix else None
        ids = {} if call.call_id is None else {names.CALL_ID: call.call_id}
        if body.get("stream"):
            self._answer(200, stream_of(path, message, receipt), "text/event-stream", ids)
        else:
            whole = answer_of(path, message) | ({} if receipt is None else {"autellix": receipt})
            self._answer(200, json.dumps(whole).encode(), headers=ids)


def _receipt(call: RecordedCall) -> dict[str, Any]:
    """Return the receipt of a call that cost nothing."""
    ids = {"call_id": call.call_id, "program_id": call.program_id}
    return {**ids, "wait_s": 0.0, "inactive_s": 0.0, "service_s": 0.0, "preemptions": 0, "estimated": True}


def _content(body: Mapping[str, Any]) -> str:
    messages = body.get("messages") or body.get("input") or body.get("prompt") or ""
    if isinstance(messages, list) and messages:
        last = messages[-1]
        messages = last.get("content") if isinstance(last, dict) else last
    if isinstance(messages, list):
        messages = "".join(part.get("text", "") for part in messages if isinstance(part, dict))
    return messages if isinstance(messages, str) else ""
