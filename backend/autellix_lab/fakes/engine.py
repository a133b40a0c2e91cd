"""A fake engine for tests: an OpenAI-compatible server inside this process, with faults on demand.

It answers calls in the APIs that vLLM speaks, streaming or not, records what it received, notices aborted
calls, and can send the accounting datagrams that the vLLM plugin sends. What is no call it echoes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from autellix_backend.core.report import EngineReport
from autellix_backend.engines.kind import EngineKind
from autellix_backend.engines.probe import Health, probe
from autellix_lab.fakes.answers import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    EMBEDDINGS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    SHAPES,
    Shape,
)
from autellix_lab.fakes.call import MODEL_NAME, FakeBehaviour, FakeCall, Fault, ReceivedRequest

__all__ = [
    "CHAT_PATH",
    "COMPLETIONS_PATH",
    "EMBEDDINGS_PATH",
    "MESSAGES_PATH",
    "MODEL_NAME",
    "RESPONSES_PATH",
    "FakeBehaviour",
    "FakeCall",
    "FakeEngine",
    "Fault",
    "ReceivedRequest",
]

MAX_BODY_BYTES = 256 * 2**20


class FakeEngine:
    """An engine whose answers and faults are chosen by the test; see FakeBehaviour."""

    def __init__(
        self,
        behaviour: FakeBehaviour | None = None,
        *,
        name: str = "fake-0",
        report_socket: Path | None = None,
        keep_alive_s: float = 75.0,
        keeps_requests: bool = True,
        is_owned: bool = True,
        kind: EngineKind = EngineKind.VLLM,
        port: int = 0,
        on_account: Callable[[EngineReport], None] | None = None,
    ) -> None:
        """Prepare a server; start() has it listen.

        Args:
            behaviour: How it answers at first.
            name: What receipts show.
            report_socket: Where it sends accounts; None for an engine that sends none.
            keep_alive_s: How long it keeps an idle connection.
            keeps_requests: Whether it remembers what it received.
            is_owned: Whether a supervisor may kill and restart it.
            kind: Whose fields its calls may have.
            port: Where it listens; 0 is any free port, another one at each start.
            on_account: Told what each call cost, whether or not that is sent anywhere.
        """
        self.behaviour = behaviour or FakeBehaviour()
        self.requests: list[ReceivedRequest] = []
        self.completed_calls = 0
        self.aborted_calls = 0
        """Calls whose client went away before the answer ended."""
        self._changed = asyncio.Event()
        self._name = name
        self._accounting_socket = report_socket
        self._keep_alive_s = keep_alive_s
        self._keeps_requests = keeps_requests
        self._is_owned = is_owned
        self._kind = kind
        self._port = port
        self._on_account = on_account
        self._runner: web.AppRunner | None = None
        self._base_url = ""
        self._failure: str | None = None
        self._faulty_calls = 0
        self._random = random.Random(0)
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
    def kind(self) -> EngineKind:
        """Whose fields its calls may have."""
        return self._kind

    @property
    def report_socket(self) -> Path | None:
        """Where accounting datagrams go."""
        return self._accounting_socket

    @property
    def kv_events_endpoint(self) -> str | None:
        """None: it has no cache."""
        return None

    @property
    def calls(self) -> list[ReceivedRequest]:
        """The received requests that are calls, oldest first."""
        return [request for request in self.requests if request.path in SHAPES]

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Return once `condition` holds; it is looked at when a request arrives, completes or is aborted.

        Raises:
            TimeoutError: if it does not hold in time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    @property
    def is_owned(self) -> bool:
        """Whether a supervisor may kill and restart it."""
        return self._is_owned

    async def start(self) -> None:
        """Listen on the loopback address."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        for path in SHAPES:
            app.router.add_post(path, self._call)
        app.router.add_post(EMBEDDINGS_PATH, self._embed)
        app.router.add_route("*", "/{path:.*}", self._echo)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=self._keep_alive_s,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
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

    async def probe(self, timeout_s: float) -> Health:
        """Ask the health path, which answers as the behaviour says."""
        return await probe(self.base_url, timeout_s)

    def is_alive(self) -> bool:
        """Say whether the server listens."""
        return self._runner is not None

    def failure(self) -> str | None:
        """Return the reason given to kill(), else None."""
        return self._failure

    async def _health(self, _request: web.Request) -> web.Response:
        if self.behaviour.health_status is None:
            await asyncio.Event().wait()
        return web.Response(status=self.behaviour.health_status or 200)

    async def _models(self, request: web.Request) -> web.Response:
        await self._record(request)
        model = {"id": MODEL_NAME, "object": "model", "created": 1_700_000_000, "owned_by": "autellix"}
        return web.json_response({"object": "list", "data": [model]})

    async def _embed(self, request: web.Request) -> web.Response:
        received = await self._record(request)
        try:
            inputs = received.json["input"]
        except (ValueError, TypeError, KeyError):
            return _error(400, "the body has no input", "BadRequestError")
        count = len(inputs) if isinstance(inputs, list) else 1
        vectors = [{"object": "embedding", "index": at, "embedding": [0.5, -0.5]} for at in range(count)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return web.json_response({"object": "list", "data": vectors, "model": MODEL_NAME, "usage": usage})

    async def _echo(self, request: web.Request) -> web.Response:
        received = await self._record(request)
        return web.json_response({"method": received.method, "target": request.raw_path})

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
        if self._keeps_requests:
            self.requests.append(received)
        self._notify()
        return received

    async def _call(self, request: web.Request) -> web.StreamResponse:
        received = await self._record(request)
        try:
            call = self._admit(received.json)
        except (ValueError, TypeError, AttributeError) as error:
            return _error(400, f"the body is no call: {error}", "BadRequestError")
        fault = self._draw_fault(call.behaviour)
        if fault is Fault.ERROR:
            return _error(call.behaviour.error_status, call.behaviour.error_message, "InternalServerError")
        if fault is Fault.RESET_BEFORE_FIRST_BYTE:
            return _reset(request)
        try:
            return await self._answer(request, call, SHAPES[request.path], fault)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted_calls += 1
            self._notify()
            raise
        finally:
            self._account(call)

    def _admit(self, body: dict[str, Any]) -> FakeCall:
        limits = (body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
        limit = next(filter(None, limits), self.behaviour.output_tokens)
        return FakeCall(
            request_id=f"call-fake-{next(self._numbers)}",
            body=body,
            behaviour=self.behaviour,
            arrival_step=self._steps,
            planned_tokens=min(int(limit), self.behaviour.output_tokens),
        )

    def _draw_fault(self, behaviour: FakeBehaviour) -> Fault:
        if behaviour.fault_shares:
            faults, shares = tuple(behaviour.fault_shares), tuple(behaviour.fault_shares.values())
            return self._random.choices((*faults, Fault.NONE), (*shares, 1.0 - sum(shares)))[0]
        is_spent = behaviour.faulty_calls is not None and self._faulty_calls >= behaviour.faulty_calls
        if behaviour.fault is Fault.NONE or is_spent:
            return Fault.NONE
        self._faulty_calls += 1
        return behaviour.fault

    async def _answer(
        self, request: web.Request, call: FakeCall, shape: Shape, fault: Fault
    ) -> web.StreamResponse:
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if fault is Fault.SLOW:
            await asyncio.sleep(call.behaviour.slow_s)
        call.is_accounted = fault is Fault.UNACCOUNTED
        if call.is_streaming:
            return await self._stream(request, call, shape, fault)
        for _ in range(call.planned_tokens):
            await self._generate_token(call)
        payload = json.dumps(shape.answer(call)).encode()
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

    async def _stream(
        self, request: web.Request, call: FakeCall, shape: Shape, fault: Fault
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in shape.opening(call):
            await response.write(event)
        for number in range(call.planned_tokens):
            if fault is Fault.RESET_MID_STREAM and number >= call.planned_tokens / 2:
                return _reset(request)
            await self._generate_token(call)
            await response.write(shape.token(call, number))
        for event in shape.closing(call):
            await response.write(event)
        await response.write_eof()
        return response

    def _account(self, call: FakeCall) -> None:
        """Tell what the call cost, once."""
        if call.is_accounted or not call.behaviour.sends_accounts:
            return
        call.is_accounted = True
        account = call.account(self._steps)
        if self._on_account is not None:
            self._on_account(account)
        if self._accounting_socket is not None:
            self._send(account.to_bytes())

    def _send(self, message: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            # As in the real plugin: with nobody listening, or the listener behind, the record is dropped.
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                sender.sendto(message, str(self._accounting_socket))


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _reset(request: web.Request) -> web.Response:
    """Cut the connection without a goodbye; the returned response reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
