"""A fake engine for tests: an OpenAI-compatible server inside this process, with faults on demand.

It answers chat completions and completions, streaming or not, records what it received, notices aborted
calls, and can send the accounting datagrams that the vLLM plugin sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from autellix_backend.core.accounting import CallAccount

MODEL_NAME = "autellix.fake-model"
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MAX_BODY_BYTES = 256 * 2**20


class Fault(enum.Enum):
    """What goes wrong with a call."""

    NONE = "none"
    ERROR = "error"
    """Answer `error_status` with an OpenAI error body."""
    RESET_BEFORE_FIRST_BYTE = "reset-before-first-byte"
    RESET_MID_STREAM = "reset-mid-stream"
    """Send half of the answer, then reset the connection."""
    HANG = "hang"
    """Never answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBehaviour:
    """How the fake engine answers; replace `FakeEngine.behaviour` at any time."""

    output_tokens: int = 4
    """Length of an answer when the request sets no limit; also the most that is generated."""
    token_delay_s: float = 0.0
    fault: Fault = Fault.NONE
    faulty_calls: int | None = None
    """How many calls suffer the fault; None: all."""
    error_status: int = 500
    error_message: str = "the fake engine was told to fail"
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields added to every answer and chunk, as future engines may."""
    message_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields added to the message of a chat completion, such as tool_calls."""
    sends_accounts: bool = True
    service_s_per_token: float = 0.01
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Header names in lower case."""
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def xargs(self) -> dict[str, Any]:
        """The `vllm_xargs` of the body, empty when there are none."""
        found: dict[str, Any] = self.json.get("vllm_xargs") or {}
        return found


@dataclass(slots=True)
class FakeCall:
    """One call that is being answered."""

    request_id: str
    body: dict[str, Any]
    is_chat: bool
    behaviour: FakeBehaviour
    planned_tokens: int
    arrival_step: int
    started_at: float = field(default_factory=time.monotonic)
    output_tokens: int = 0
    is_accounted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all tokens are generated."""
        return self.output_tokens >= self.planned_tokens

    @property
    def is_streaming(self) -> bool:
        """Whether the client asked for a stream."""
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for usage at the end of the stream."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def chunk_kind(self) -> str:
        """The `object` of a streamed chunk."""
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    @property
    def prompt_tokens(self) -> int:
        """A stand-in for tokenizing: the words of the prompt."""
        source = self.body.get("messages") if self.is_chat else self.body.get("prompt", "")
        return len(json.dumps(source).split())

    def usage(self) -> dict[str, int]:
        """Count the tokens as the OpenAI API does."""
        total = self.prompt_tokens + self.output_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": total,
        }

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Wrap choices into an answer or a chunk."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": 1_700_000_000,
            "model": self.body.get("model", MODEL_NAME),
            "choices": choices,
            **self.behaviour.extra_fields,
        }

    def answer(self) -> dict[str, Any]:
        """Build the complete answer of a call that does not stream."""
        text = "".join(map(_token, range(self.planned_tokens)))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": text, **self.behaviour.message_fields}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self.envelope(kind, [choice]) | {"usage": self.usage()}

    def chunk(self, number: int) -> dict[str, Any]:
        """Build the chunk of one token."""
        is_last = number == self.planned_tokens - 1
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if is_last else None}
        if self.is_chat:
            role = {"role": "assistant"} if number == 0 else {}
            choice["delta"] = role | {"content": _token(number)}
        else:
            choice["text"] = _token(number)
        return self.envelope(self.chunk_kind, [choice])

    def account(self, finish_step: int) -> CallAccount:
        """Build the record that the vLLM plugin would send."""
        xargs = self.body.get("vllm_xargs") or {}
        wait_s = self.behaviour.wait_s
        return CallAccount(
            call_id=xargs.get("autellix_call", self.request_id),
            program_id=xargs.get("autellix_program", self.request_id),
            thread_id=xargs.get("autellix_thread", "0"),
            request_id=self.request_id,
            arrival_s=self.started_at,
            finish_s=time.monotonic(),
            wait_s=wait_s,
            table_wait_s=wait_s,
            service_s=self.output_tokens * self.behaviour.service_s_per_token,
            inherited_service_s=float(xargs.get("autellix_service_s", 0.0)),
            level=1,
            preemptions=0,
            demotions=0,
            promotions=0,
            is_aborted=not self.is_complete,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=0,
            arrival_step=self.arrival_step,
            finish_step=finish_step,
            engine_steps=self.output_tokens,
            finish_reason="length" if self.is_complete else "abort",
            dropped_records=0,
        )


class FakeEngine:
    """An engine whose answers and faults are chosen by the test; see FakeBehaviour."""

    def __init__(
        self,
        behaviour: FakeBehaviour | None = None,
        *,
        name: str = "fake-0",
        accounting_socket: Path | None = None,
        keep_alive_s: float = 75.0,
    ) -> None:
        self.behaviour = behaviour or FakeBehaviour()
        self.requests: list[ReceivedRequest] = []
        self.completed_calls = 0
        self.aborted_calls = 0
        """Calls whose client went away before the answer ended."""
        self._changed = asyncio.Event()
        self._name = name
        self._accounting_socket = accounting_socket
        self._keep_alive_s = keep_alive_s
        self._runner: web.AppRunner | None = None
        self._base_url = ""
        self._failure: str | None = None
        self._faulty_calls = 0
        self._steps = 0
        self._numbers = itertools.count()

    @property
    def name(self) -> str:
        """The name that receipts show."""
        return self._name

    @property
    def base_url(self) -> str:
        """Root of the server; valid after start()."""
        return self._base_url

    @property
    def accounting_socket(self) -> Path | None:
        """Where accounting datagrams go."""
        return self._accounting_socket

    @property
    def calls(self) -> list[ReceivedRequest]:
        """The received requests that are calls, oldest first."""
        return [request for request in self.requests if request.path in (CHAT_PATH, COMPLETIONS_PATH)]

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Return once `condition` holds; it is looked at when a request arrives, completes or is aborted.

        Raises:
            TimeoutError: if it does not hold in time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    async def start(self) -> None:
        """Listen on a free port of the loopback address."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post(CHAT_PATH, self._call)
        app.router.add_post(COMPLETIONS_PATH, self._call)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=self._keep_alive_s,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._failure = None

    async def stop(self) -> None:
        """Close the server and its connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def kill(self, reason: str = "the fake engine was killed") -> None:
        """Die as a crashed engine does: running calls are cut off and failure() tells the reason."""
        await self.stop()
        self._failure = reason

    def is_alive(self) -> bool:
        """Say whether the server listens."""
        return self._runner is not None

    def failure(self) -> str | None:
        """Return the reason given to kill(), else None."""
        return self._failure

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        await self._record(request)
        model = {"id": MODEL_NAME, "object": "model", "created": 1_700_000_000, "owned_by": "autellix"}
        return web.json_response({"object": "list", "data": [model]})

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _record(self, request: web.Request) -> ReceivedRequest:
        received = ReceivedRequest(
            method=request.method,
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.read(),
        )
        self.requests.append(received)
        self._notify()
        return received

    async def _call(self, request: web.Request) -> web.StreamResponse:
        received = await self._record(request)
        try:
            body = received.json
        except ValueError:
            return _error(400, "the body is not JSON", "BadRequestError")
        call = self._admit(body, is_chat=request.path == CHAT_PATH)
        fault = self._draw_fault(call.behaviour)
        if fault is Fault.ERROR:
            return _error(call.behaviour.error_status, call.behaviour.error_message, "InternalServerError")
        if fault is Fault.RESET_BEFORE_FIRST_BYTE:
            return _reset(request)
        try:
            return await self._answer(request, call, fault)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted_calls += 1
            self._notify()
            raise
        finally:
            self._account(call)

    def _admit(self, body: dict[str, Any], *, is_chat: bool) -> FakeCall:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or self.behaviour.output_tokens
        return FakeCall(
            request_id=f"{'chatcmpl' if is_chat else 'cmpl'}-fake-{next(self._numbers)}",
            body=body,
            is_chat=is_chat,
            behaviour=self.behaviour,
            arrival_step=self._steps,
            planned_tokens=min(int(limit), self.behaviour.output_tokens),
        )

    def _draw_fault(self, behaviour: FakeBehaviour) -> Fault:
        is_spent = behaviour.faulty_calls is not None and self._faulty_calls >= behaviour.faulty_calls
        if behaviour.fault is Fault.NONE or is_spent:
            return Fault.NONE
        self._faulty_calls += 1
        return behaviour.fault

    async def _answer(self, request: web.Request, call: FakeCall, fault: Fault) -> web.StreamResponse:
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if call.is_streaming:
            return await self._stream(request, call, fault)
        for _ in range(call.planned_tokens):
            await self._generate_token(call)
        payload = json.dumps(call.answer()).encode()
        if fault is Fault.RESET_MID_STREAM:
            return await self._send_half(request, payload)
        return web.Response(body=payload, content_type="application/json")

    async def _generate_token(self, call: FakeCall) -> None:
        if call.behaviour.token_delay_s:
            await asyncio.sleep(call.behaviour.token_delay_s)
        call.output_tokens += 1
        self._steps += 1
        if call.is_complete:
            # As in vLLM, the account leaves before the last token does.
            self.completed_calls += 1
            self._notify()
            self._account(call)

    async def _send_half(self, request: web.Request, payload: bytes) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(payload))}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2])
        return _reset(request)

    async def _stream(self, request: web.Request, call: FakeCall, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number in range(call.planned_tokens):
            if fault is Fault.RESET_MID_STREAM and number >= call.planned_tokens / 2:
                return _reset(request)
            await self._generate_token(call)
            await response.write(_event(json.dumps(call.chunk(number))))
        if call.wants_usage:
            usage_chunk = call.envelope(call.chunk_kind, []) | {"usage": call.usage()}
            await response.write(_event(json.dumps(usage_chunk)))
        await response.write(_event("[DONE]"))
        await response.write_eof()
        return response

    def _account(self, call: FakeCall) -> None:
        """Send the call's accounting datagram, once."""
        if call.is_accounted or self._accounting_socket is None or not call.behaviour.sends_accounts:
            return
        call.is_accounted = True
        message = call.account(self._steps).to_bytes()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            # As in the real plugin: with nobody listening, or the listener behind, the record is dropped.
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                sender.sendto(message, str(self._accounting_socket))


def _token(number: int) -> str:
    return f"token{number} "


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _reset(request: web.Request) -> web.Response:
    """Cut the connection without a goodbye; the returned response reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
