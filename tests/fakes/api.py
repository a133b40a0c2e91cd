"""The HTTP side of the fake engine: answers, faults and the record of requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

from aiohttp import web
from tests.fakes.answers import DIALECTS, EMBEDDINGS_PATH, FakeDialect
from tests.fakes.call import MODEL_NAME, FakeBehaviour, FakeCall, Fault, ReceivedRequest
from tests.raw_engine import reset_on_close

from autellix_backend.reports.report import EngineReport
from autellix_backend.vllm_plugin.report_server import ReportServer

MAX_BODY_BYTES = 256 * 2**20


class FakeApi:
    """Answers calls by its behaviour, and records the requests."""

    def __init__(
        self,
        behaviour: FakeBehaviour,
        *,
        keeps_requests: bool,
        on_report: Callable[[EngineReport], None] | None,
    ) -> None:
        self.behaviour = behaviour
        self.requests: list[ReceivedRequest] = []
        self.completed_calls = 0
        self.aborted_calls = 0
        """Calls whose client disconnected before the answer ended."""
        self.steps = 0
        """Tokens generated, over all calls."""
        self.report_server: ReportServer | None = None
        """Sends engine reports."""
        self._keeps_requests = keeps_requests
        self._on_report = on_report
        self._changed = asyncio.Event()
        self._faulty_calls = 0
        self._random = random.Random(0)
        self._numbers = itertools.count()
        self._responses = set[str]()

    @property
    def calls(self) -> list[ReceivedRequest]:
        """The received requests that are calls, oldest first."""
        return [request for request in self.requests if request.path in DIALECTS]

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Return once `condition` holds; checked when a request arrives, completes or is aborted.

        Raises:
            TimeoutError: if it does not hold in time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    def app(self) -> web.Application:
        """Return a web application with all routes."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        for path in DIALECTS:
            app.router.add_post(path, self._call)
        app.router.add_post(EMBEDDINGS_PATH, self._embed)
        app.router.add_route("*", "/{path:.*}", self._echo)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        if self.behaviour.health_status is None:
            await asyncio.Event().wait()
        return web.Response(status=self.behaviour.health_status or 200)

    async def _models(self, request: web.Request) -> web.Response:
        await self._record(request)
        facts = {"object": "model", "created": 1_700_000_000, "owned_by": "autellix"}
        data = [{"id": name, **facts} for name in self.behaviour.models]
        return web.json_response({"object": "list", "data": data})

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
        if self.behaviour.fault is Fault.ERROR:
            return _error(self.behaviour.error_status, self.behaviour.error_message, "InternalServerError")
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
            return _error(400, f"the body is not a call: {error}", "BadRequestError")
        previous = call.body.get("previous_response_id")
        if previous is not None and previous not in self._responses:
            return _error(404, f"there is no response {previous}", "NotFoundError")
        if self._keeps_requests:
            self._responses.add(call.response_id)
        fault = self._draw_fault(call.behaviour)
        if fault is Fault.ERROR:
            return _error(call.behaviour.error_status, call.behaviour.error_message, "InternalServerError")
        if fault is Fault.RESET_BEFORE_FIRST_BYTE:
            return _reset(request, is_hard=True)
        try:
            return await self._answer(request, call, DIALECTS[request.path], fault)
        except asyncio.CancelledError:
            self._count_abort()
            raise
        except ConnectionError:
            # Raised, it would be logged as an error of this server.
            self._count_abort()
            return _reset(request)
        finally:
            self._report(call)

    def _count_abort(self) -> None:
        self.aborted_calls += 1
        self._notify()

    def _admit(self, body: dict[str, Any]) -> FakeCall:
        limits = (body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
        limit = next(filter(None, limits), self.behaviour.output_tokens)
        make_id = self.behaviour.make_tool_call_id
        return FakeCall(
            request_id=f"call-fake-{next(self._numbers)}",
            body=body,
            behaviour=self.behaviour,
            arrival_step=self.steps,
            planned_tokens=min(int(limit), self.behaviour.output_tokens),
            tool_call_id=make_id() if make_id is not None and body.get("tools") else None,
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
        self, request: web.Request, call: FakeCall, dialect: FakeDialect, fault: Fault
    ) -> web.StreamResponse:
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if call.behaviour.gate is not None:
            await call.behaviour.gate.wait()
        if fault is Fault.SLOW:
            await asyncio.sleep(call.behaviour.slow_s)
        call.is_reported = fault is Fault.UNREPORTED
        if call.is_streaming:
            return await self._stream(request, call, dialect, fault)
        for _ in range(call.planned_tokens):
            await self._generate_token(call)
        payload = json.dumps(dialect.answer(call)).encode()
        if fault is Fault.RESET_MID_STREAM:
            return await self._send_half(request, payload)
        return web.Response(body=payload, content_type="application/json")

    async def _generate_token(self, call: FakeCall) -> None:
        if call.behaviour.token_delay_s:
            await asyncio.sleep(call.behaviour.token_delay_s)
        call.output_tokens += 1
        self.steps += 1
        if call.is_complete:
            # As in vLLM, the report precedes the last token.
            self.completed_calls += 1
            self._notify()
            self._report(call)

    async def _send_half(self, request: web.Request, payload: bytes) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(payload))}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2])
        return _reset(request)

    async def _stream(
        self, request: web.Request, call: FakeCall, dialect: FakeDialect, fault: Fault
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in dialect.opening(call):
            await response.write(event)
        for number in range(call.planned_tokens):
            if fault is Fault.RESET_MID_STREAM and number >= call.planned_tokens / 2:
                return _reset(request)
            await self._generate_token(call)
            await response.write(dialect.token(call, number))
        for event in dialect.closing(call):
            await response.write(event)
        await response.write_eof()
        return response

    def _report(self, call: FakeCall) -> None:
        """Report the call's cost, once."""
        if call.is_reported or not call.behaviour.sends_reports:
            return
        call.is_reported = True
        report = call.report(self.steps)
        if self._on_report is not None:
            self._on_report(report)
        if self.report_server is not None:
            self.report_server.send(call.gateway, report)


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _reset(request: web.Request, *, is_hard: bool = False) -> web.Response:
    """End the connection, hard as if the request had not been read; the returned response is never sent."""
    if request.transport is not None:
        if is_hard:
            reset_on_close(request.transport)
        request.transport.abort()
    return web.Response()
