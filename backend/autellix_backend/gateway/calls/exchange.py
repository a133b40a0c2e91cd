"""The path of a call, from top to bottom: identify, choose engine, admit, send, relay, settle.

A call is settled exactly once, also when its client disconnects, its engine dies, times out or cannot
be reached, or the gateway shuts down. Until the first byte of its answer it may be sent again: once after a
reset of the connection, and once more to another engine when its engine died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import aiohttp
from starlette.types import Receive, Scope, Send

from autellix_backend.engines.base import EngineKind
from autellix_backend.gateway.calls.body import CallBody, bounded, check_items, parse_body
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.calls.open_call import CallRequest, OpenCall
from autellix_backend.gateway.calls.outbound import engine_body, fan_out_id
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.sse import StreamEndSplitter, begins_stream, error_event, holds_error
from autellix_backend.gateway.calls.usage import StreamTail, read_usage
from autellix_backend.gateway.classes import ProgramClasses, class_id
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.router import Assignment, Router
from autellix_backend.gateway.engines.upstream import (
    REQUEST_ID_HEADER,
    EngineResetError,
    engine_headers,
    response_headers,
)
from autellix_backend.gateway.errors import (
    EngineAnswerError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    ShuttingDownError,
)
from autellix_backend.gateway.identity.identity import Identity, IdentityResolver, read_identity
from autellix_backend.gateway.identity.program_class import prefix_id, program_class
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.raw_json import is_object
from autellix_backend.gateway.requests import pause_after, read_body, read_headers, run_while_connected
from autellix_backend.gateway.tenancy.intake import BodyHold, Intake
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants
from autellix_backend.observe.settled_call import Outcome
from autellix_wire import CALL_ID, ENGINE, IDENTITY_SOURCE, PROGRAM_ID, QUEUE_LEVEL

EVENT_FIELD = b"data:"


class CallEndpoint:
    """ASGI app of one path that makes calls. This is the hot path: no model classes, no middleware."""

    def __init__(
        self,
        dialect: Dialect,
        tenants: Tenants,
        tokens: SessionTokens,
        resolver: IdentityResolver,
        router: Router,
        registry: CallRegistry,
        classes: ProgramClasses,
        intake: Intake,
        *,
        max_body_bytes: int,
    ) -> None:
        self._dialect = dialect
        self._tenants = tenants
        self._tokens = tokens
        self._resolver = resolver
        self._router = router
        self._registry = registry
        self._classes = classes
        self._intake = intake
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call.

        Raises:
            GatewayError: if the call fails before its answer has begun.
            ClientGoneError: if the client leaves before the end of its request.
        """
        with self._intake.hold(self._tenants.of(scope)) as hold:
            await self._answer(scope, receive, send, hold)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, hold: BodyHold) -> None:
        headers = read_headers(scope)
        data = await read_body(headers, receive, hold, self._max_body_bytes, "gateway.max_body_bytes")
        tenant = self._tenants.of(scope)
        # A long body takes milliseconds in each of these steps.
        await hold.pause()
        check_items(data)
        await hold.pause()
        body = bounded(parse_body(data, self._dialect), tenant.limits, self._dialect)
        await hold.pause()
        identity = await self._identify(tenant, headers, body)
        request = CallRequest(
            dialect=self._dialect,
            tenant=tenant,
            identity=identity,
            headers=headers,
            body=body,
            class_id=self._new_class(tenant, identity, body),
        )
        prefix = self._prefix(tenant, identity, body)
        assignment = self._router.assign(identity.program, body.model, body.size_bytes, prefix)
        # From here on it counts among the calls.
        hold.release()
        try:
            call = await self._registry.begin(request, assignment.handle.name, assignment.prompt_tokens)
            # Only now: a call that the tenant's limits refuse leaves nothing that others would lose room to.
            self._resolver.remember(identity, tenant)
            await Exchange(self._router, self._registry, assignment, call, send).run(receive)
        finally:
            self._router.release(assignment)

    async def _identify(self, tenant: Tenant, headers: Mapping[str, str], body: CallBody) -> Identity:
        named = read_identity(headers, body.fields, self._registry.new_id).scoped_to(tenant)
        verified = await self._tokens.verify(named, headers, tenant)
        return self._resolver.resolve(verified, body.fields, tenant)

    def _new_class(self, tenant: Tenant, identity: Identity, body: CallBody) -> str | None:
        """Return the class of a program that is new here, None for a known one."""
        if identity.program in self._classes:
            return None
        return class_id(tenant.name, program_class(identity.name, body.fields))

    def _prefix(self, tenant: Tenant, identity: Identity, body: CallBody) -> str:
        """Return the id of what a new program's prompts begin with, where an engine is chosen by it."""
        if not self._router.needs_prefix(identity.program):
            return ""
        prefix = prefix_id(body.fields)
        # Engines keep the caches of tenants apart.
        return class_id(tenant.name, prefix) if prefix else ""


class Exchange:
    """One call that has begun, on its way to an engine and back."""

    def __init__(
        self,
        router: Router,
        registry: CallRegistry,
        assignment: Assignment,
        call: OpenCall,
        send: Send,
    ) -> None:
        self._router = router
        self._registry = registry
        self._dialect = call.request.dialect
        self._assignment = assignment
        self._call = call
        self._send = send
        self._outcome = Outcome.ABORTED
        self._was_repeated = False
        """Whether an engine died under the call and it was sent to another one."""
        self._has_begun = False
        """Whether the client has the head of its answer."""
        self._is_stream_open = False
        self._ended: tuple[str, ...] = ()
        """The ends of other programs that went with the call."""

    async def run(self, receive: Receive) -> None:
        """Answer the call until its client disconnects, and settle it."""
        is_cut_off = False
        try:
            await run_while_connected(self._attempt_all(), receive)
        except asyncio.CancelledError:
            # The server has waited long enough for this call; its client still expects an answer.
            is_cut_off = True
        finally:
            await self._settle_open()
        if is_cut_off:
            await self._answer_cut_off()

    async def _attempt_all(self) -> None:
        """Send the call to one engine after the other until one answers."""
        try:
            while not await self._attempt():
                self._router.reassign(self._assignment)
                self._registry.move(self._call, self._handle.name)
        except GatewayError as error:
            self._outcome = _outcome_of(error)
            error.headers.update(self._receipt_headers(self._call.level))
            raise

    async def _attempt(self) -> bool:
        """Send the call when its turn comes, and relay the answer; return False if it is to be sent again."""
        async with self._router.pool.turn(self._handle, self._call.queued) as may_send:
            if not may_send:
                return False
            try:
                await pause_after(self._call.request.body.size_bytes)
                response = await self._send_call()
                self._on_reached()
                await self._relay(response)
            except EngineUnavailableError as error:
                if error.is_unsent:
                    self._handle.queue.on_unreached(self._call.queued)
                else:
                    await self._check_repeat(error)
                return False
        return True

    async def _send_call(self) -> aiohttp.ClientResponse:
        """Send the call, and once more after a reset of the connection; return the response at its head."""
        upstream, path = self._handle.upstream, self._dialect.path
        try:
            return await upstream.send("POST", path, *self._encode())
        except EngineResetError as error:
            # A connection that lay idle for too long is closed by an engine that lives.
            if await self._has_died():
                raise upstream.unavailable(error) from error
            upstream.on_retry()
            return await upstream.send("POST", path, *self._encode(), is_retry=True)

    def _encode(self) -> tuple[Mapping[str, str], bytes]:
        # Each attempt has its own id in the engine, and so its own body.
        self._registry.on_sent(self._call)
        args: Mapping[str, str | float] = {}
        if self._dialect.takes_identity:
            self._ended = self._handle.ended.on_sent(self._call.start.program_id)
            is_linked = self._handle.link is not None
            args = self._registry.engine_args(self._call, self._ended, is_linked=is_linked)
        request, upstream = self._call.request, self._handle.upstream
        headers = engine_headers(
            request.headers,
            upstream.kind,
            self._call.start.program_id,
            session_header=upstream.session_header,
        )
        if request.body.is_beam_search and args and upstream.kind is EngineKind.VLLM:
            headers[REQUEST_ID_HEADER] = fan_out_id(args)
        return headers, engine_body(request.body, upstream.kind, args, tenant=request.tenant.name)

    def _on_reached(self) -> None:
        self._handle.queue.on_reached(self._call.queued)
        self._handle.ended.on_received(self._ended)
        if self._call.is_final:
            self._handle.ended.on_last_received(self._call.start.program_id)

    async def _check_repeat(self, error: EngineUnavailableError) -> None:
        """Raise the error again unless the call may be sent to another engine because its engine died."""
        if self._has_begun or not await self._has_died():
            raise error
        if self._was_repeated:
            # The call may be what kills engines: no client library should send it a third time.
            error.forbid_retry()
            raise error
        self._was_repeated = True
        self._registry.on_repeat(self._call)

    async def _relay(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            await self._relay_error(response)
        elif response.content_type == "text/event-stream":
            await self._relay_stream(response)
        else:
            await self._relay_body(response)

    async def _relay_error(self, response: aiohttp.ClientResponse) -> None:
        content = await self._handle.upstream.read(response)
        if response.status >= 500 and await self._has_died():
            raise self._death()
        self._outcome = Outcome.REJECTED
        await self._registry.settle(self._call, self._outcome, has_reports=False)
        await self._start(response, content_length=len(content), level=self._call.level)
        await self._send({"type": "http.response.body", "body": content})

    async def _relay_body(self, response: aiohttp.ClientResponse) -> None:
        content = await self._handle.upstream.read(response)
        is_json = response.content_type == "application/json" and "content-encoding" not in response.headers
        if is_json and not is_object(content):
            raise self._handle.upstream.bad_answer("answered with what is no JSON object")
        receipt = await self._registry.settle(
            self._call, Outcome.OK, has_reports=self._has_reports, read_usage=partial(read_usage, content)
        )
        if is_json:
            content = receipt.spliced_into(content)
        level = receipt.level or self._call.level
        await self._start(response, content_length=len(content), level=level)
        await self._send({"type": "http.response.body", "body": content})

    async def _relay_stream(self, response: aiohttp.ClientResponse) -> None:
        splitter = StreamEndSplitter(self._dialect.stream_ends)
        try:
            await self._relay_events(response, splitter)
        except GatewayError as error:
            if not self._has_begun:
                raise
            await self._break_off(error, splitter.flush())
        finally:
            # Only a stream that ended by itself may return its connection; any other must abort the call.
            if not response.content.at_eof():
                response.close()

    async def _relay_events(self, response: aiohttp.ClientResponse, splitter: StreamEndSplitter) -> None:
        kept = StreamTail()
        last_event = bytearray()
        async for chunk in self._handle.upstream.chunks(response):
            if not self._has_begun and not begins_stream(chunk):
                raise self._handle.upstream.bad_answer("answered with what is no stream of events")
            if holds_error(chunk) and await self._has_died():
                raise self._death()
            if not self._has_begun:
                await self._begin_stream(response)
            head, found = (b"", chunk) if last_event else splitter.feed(chunk)
            if head:
                kept.feed(head)
                self._call.streamed_events += head.count(EVENT_FIELD)
                await self._send_part(head)
            last_event += found
            self._handle.upstream.check_size(len(last_event))
        if not self._has_begun:
            await self._begin_stream(response)
        receipt = await self._registry.settle(
            self._call,
            Outcome.OK,
            has_reports=self._has_reports,
            read_usage=partial(kept.usage, bytes(last_event)),
        )
        await self._send_part(splitter.flush() + receipt.comment() + last_event, is_last=True)

    async def _begin_stream(self, response: aiohttp.ClientResponse) -> None:
        # The head waits for the first bytes: until then the call may be sent to another engine.
        await self._start(response, content_length=None, level=self._call.level)
        self._is_stream_open = True

    async def _break_off(self, error: GatewayError, rest: bytes) -> None:
        """End a stream with an error event, because its head is out already."""
        self._outcome = _outcome_of(error)
        receipt = await self._registry.settle(self._call, self._outcome, has_reports=False)
        event = error_event(error, self._dialect.errors)
        await self._send_part(rest + event + receipt.comment(), is_last=True)

    async def _settle_open(self) -> None:
        """Settle the call unless that has happened."""
        if self._call.receipt is not None:
            return
        was_sent = self._call.sent_s is not None
        did_run = was_sent and self._outcome in (Outcome.ABORTED, Outcome.TIMEOUT, Outcome.BAD_ANSWER)
        await self._registry.settle(self._call, self._outcome, has_reports=did_run and self._has_reports)

    async def _answer_cut_off(self) -> None:
        """Answer a call that the shutdown cut off, if it can still be answered.

        Raises:
            ShuttingDownError: if nothing was sent yet; the error handler answers.
        """
        error = ShuttingDownError()
        if not self._has_begun:
            error.headers.update(self._receipt_headers(self._call.level))
            raise error
        if self._is_stream_open:
            await self._send_part(error_event(error, self._dialect.errors), is_last=True)

    @property
    def _handle(self) -> EngineHandle:
        """The engine that the call is at."""
        return self._assignment.handle

    @property
    def _has_reports(self) -> bool:
        """Whether the engine's reports of what calls cost arrive."""
        return self._dialect.takes_identity and self._handle.sends_reports

    async def _has_died(self) -> bool:
        return await self._handle.queue.has_died(self._call.queued)

    def _death(self) -> EngineUnavailableError:
        return EngineUnavailableError(f"engine {self._call.engine} died while it answered")

    async def _send_part(self, data: bytes, *, is_last: bool = False) -> None:
        if self._call.first_bytes_s is None:
            self._registry.on_first_bytes(self._call)
        self._is_stream_open = not is_last
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _start(
        self, response: aiohttp.ClientResponse, *, content_length: int | None, level: int
    ) -> None:
        headers = [*response_headers(response.raw_headers), *_encoded(self._receipt_headers(level))]
        if content_length is not None:
            headers.append((b"content-length", str(content_length).encode()))
        self._has_begun = True
        self._assignment.admission.release()
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    def _receipt_headers(self, level: int) -> dict[str, str]:
        return {
            PROGRAM_ID: self._call.shown_program,
            CALL_ID: self._call.start.call_id,
            IDENTITY_SOURCE: self._call.request.identity.source,
            ENGINE: self._call.engine,
            QUEUE_LEVEL: str(level),
            **self._call.rate_headers,
        }


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def _outcome_of(error: GatewayError) -> Outcome:
    if isinstance(error, EngineTimeoutError):
        return Outcome.TIMEOUT
    return Outcome.BAD_ANSWER if isinstance(error, EngineAnswerError) else Outcome.UNAVAILABLE
