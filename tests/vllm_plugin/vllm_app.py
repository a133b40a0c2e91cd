"""An application that answers as vLLM does, and a client that calls it through the middleware."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.middleware import Middleware

from autellix_backend.reports.call_arguments import CallIdentity, read_identity
from autellix_backend.vllm_plugin.middleware import KEY_CHECK, SCHEDULER, ProgramMiddleware

Message = dict[str, Any]

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
TOOLS = [{"type": "function", "function": {"name": "search"}}]
TOOL_CALL: Message = {
    "id": "call_a1b2c3d4e5",
    "type": "function",
    "function": {"name": "search", "arguments": "{}"},
}
RESULT: Message = {"role": "tool", "tool_call_id": "call_a1b2c3d4e5", "content": "found"}
RESPONSE_ID = "resp_0a1b2c3d4e5f6a7b"


def chat_answer(*tool_calls: Message) -> bytes:
    message = {"role": "assistant", "content": "hi", "tool_calls": list(tool_calls)}
    return json.dumps({"object": "chat.completion", "choices": [{"message": message}]}).encode()


class Vllm:
    """Stands for vLLM's application: keeps what it gets, and answers with `parts`."""

    def __init__(self) -> None:
        self.scopes: list[Message] = []
        self.bodies: list[bytes] = []
        self.parts: list[bytes] = [chat_answer()]
        self.status = 200
        self.kind = b"application/json"
        self.before_part: Callable[[], Awaitable[None]] | None = None
        self.is_disconnected = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for phase in "startup", "shutdown":
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.is_disconnected = True
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.scopes.append(scope)
        self.bodies.append(body)
        await send(
            {"type": "http.response.start", "status": self.status, "headers": [(b"content-type", self.kind)]}
        )
        for part in self.parts:
            if self.before_part is not None:
                await self.before_part()
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    @property
    def xargs(self) -> Message:
        """The arguments of the last request."""
        found: Message = json.loads(self.bodies[-1])["vllm_xargs"]
        return found

    @property
    def identity(self) -> CallIdentity:
        """What the scheduler reads of the last request."""
        return read_identity("r", self.xargs, None)


class Client:
    """Sends requests through the middleware."""

    def __init__(
        self, vllm: Vllm, section: Message | None = None, processes: int = 1, keys: list[str] | None = None
    ) -> None:
        self.now = 0.0
        self.vllm = vllm
        check = key_check() if keys else None
        checks = [Middleware(check, tokens=keys)] if check else []
        self.app = ProgramMiddleware(check(vllm, tokens=keys) if check else vllm, lambda: self.now)
        config = SimpleNamespace(
            additional_config={} if section is None else {"autellix": section},
            parallel_config=SimpleNamespace(_api_process_count=processes),
            scheduler_config=SimpleNamespace(scheduler_cls=SCHEDULER),
        )
        engine = SimpleNamespace(vllm_config=config)
        state = SimpleNamespace(engine_client=engine)
        self._server = SimpleNamespace(state=state, user_middleware=checks)
        self.headers: dict[str, str] = {}
        """Those of the last answer."""

    def scope(self, method: str, path: str, headers: dict[str, str], length: int) -> Message:
        named = {"content-length": str(length), **{name.lower(): headers[name] for name in headers}}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        return {"type": "http", "method": method, "path": path, "headers": raw, "app": self._server}

    async def send(
        self,
        body: Message | bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        path: str = CHAT,
        method: str = "POST",
    ) -> tuple[int, bytes]:
        """Send a request whose body comes in two parts; return status and body of the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        incoming: list[Message] = [
            {"type": "http.request", "body": data[:5], "more_body": True},
            {"type": "http.request", "body": data[5:], "more_body": False},
            {"type": "http.disconnect"},
        ]
        sent: list[Any] = []

        async def receive() -> Message:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(self.scope(method, path, headers or {}, len(data)), receive, send)
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    async def call(
        self, *messages: Message, headers: dict[str, str] | None = None, **fields: Any
    ) -> CallIdentity:
        """Make a call, and return what the scheduler reads of it."""
        await self.send({"model": "m", "messages": list(messages), **fields}, headers=headers)
        return self.vllm.identity


def key_check() -> Any:
    """Return vLLM's check of keys, without an import of all of vLLM."""
    vllm = find_spec("vllm")
    if vllm is None or not vllm.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    place = Path(vllm.submodule_search_locations[0]) / "entrypoints/serve/middleware/authenticate.py"
    spec = spec_from_file_location("authenticate", place)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, KEY_CHECK)
