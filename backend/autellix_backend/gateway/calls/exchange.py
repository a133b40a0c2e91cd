"""The path of a call, from top to bottom: identify, choose engine, admit, send, relay, settle.

A call is settled exactly once, also when its client disconnects, its engine dies, times out or cannot
be reached, or the gateway shuts down. Until the first byte of its answer it may be sent again where it cannot
have run, or its work is lost: once if a kept connection was closed before the engine read it, and once to
another engine when its engine died. Once the head of its stream is out, what fails ends the stream with an
error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from aiohttp import ClientResponse
from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.calls.body import bounded, parse_body
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.calls.outbound import EngineArguments, engine_request
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.reply import RelayedStream, Reply
from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.calls.sse import begins_stream, engine_error_event, error_event
from autellix_backend.gateway.calls.usage import read_usage
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.models import ModelLists
from autellix_backend.gateway.engines.upstream import MAY_HAVE_RUN, EngineResetError
from autellix_backend.gateway.errors import (
    EngineAnswerError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    InvalidRequestError,
    ShuttingDownError,
    UnavailableError,
)
from autellix_backend.gateway.identity.identity import IdentityResolver, read_identity
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.raw_json import is_object
from autellix_backend.gateway.requests import (
    check_values,
    pause_after,
    read_body,
    read_headers,
    run_while_connected,
)
from autellix_backend.gateway.tenancy.intake import Intake
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.reports.receipt import Receipt


@dataclass(frozen=True, slots=True, eq=False)
class CallEndpoint:
    """ASGI app of one path that makes calls. This is the hot path: no model classes, no middleware."""

    dialect: Dialect
    tenants: Tenants
    tokens: SessionTokens
    resolver: IdentityResolver
    models: ModelLists
    router: Router
    registry: CallRegistry
    arguments: EngineArguments
    intake: Intake
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call.

        Raises:
            GatewayError: if the call fails before its answer has begun.
            ClientGoneError: if the client leaves before the end of its request.
        """
        tenant, dialect = self.tenants.of(scope), self.dialect
        with self.intake.hold(tenant) as hold:
            headers = read_headers(scope)
            data = await read_body(headers, receive, hold, self.max_body_bytes, "gateway.max_body_bytes")
            # A long body takes milliseconds in each of these steps.
            await hold.pause()
            await check_values(data, hold)
            await hold.pause()
            body = bounded(parse_body(data, dialect), tenant.limits, dialect)
            await hold.pause()
            tenant.check_model(body.model)
            await self.models.check(body.model)
            named = read_identity(headers, body.fields, self.registry.new_id()).scoped_to(tenant)
            verified = await self.tokens.verify(named, headers, tenant)
            identity = await self.resolver.resolve(
                verified, body.fields, tenant, offers_tools=body.offers_tools
            )
            call = GatewayCall(
                dialect=dialect,
                tenant=tenant,
                identity=identity,
                headers=headers,
                body=body,
                model=body.model,
            )
            self.router.assign(call)
            # From here on the body counts as part of its call.
            hold.release()
            try:
                await self.registry.begin(call)
                # Not before: a refused call must leave nothing in bounded tables.
                self.router.on_begun(call)
                self.resolver.remember(identity, tenant)
                reply = Reply(self.registry, call, send)
                await Exchange(self.router, self.registry, self.arguments, call, reply).run(receive)
            finally:
                self.router.release(call)


@dataclass(slots=True, eq=False)
class Exchange:
    """One call that has begun, on its way to an engine and back."""

    router: Router
    registry: CallRegistry
    arguments: EngineArguments
    call: GatewayCall
    reply: Reply
    outcome: Outcome = Outcome.ABORTED
    """What it is settled with unless an answer decides."""
    was_repeated: bool = False
    """Whether an engine died under the call and it was sent to another one."""
    ended: tuple[str, ...] = ()
    """The ends of other programs that went with the call."""
    stream: RelayedStream | None = None
    """The stream that the engine answers with."""

    async def run(self, receive: Receive) -> None:
        """Answer the call until its client disconnects, and settle it."""
        is_cut_off = False
        if self.call.body.is_streaming and self.call.dialect.stream_ends:
            self.reply.keep_alive()
        try:
            await run_while_connected(self._attempt_all(), receive)
        except asyncio.CancelledError:
            # The server has waited long enough for this call; its client still expects an answer.
            is_cut_off = True
        finally:
            await self.reply.stop_waiting()
            if self.call.receipt is None:
                await self._settle_unanswered()
        if is_cut_off:
            await self._answer_cut_off()

    async def _attempt_all(self) -> None:
        """Send the call to one engine after the other until one answers."""
        try:
            # Here, where a call that is cut off is settled all the same.
            await self.registry.end_emptied(self.call)
            while not await self._attempt(self.call.handle):
                self.router.reassign(self.call)
                self.registry.renew_key(self.call)
        except GatewayError as error:
            self.outcome = _outcome_of(error)
            await self.reply.stop_waiting()
            if self.reply.has_begun:
                await self._break_off(error)
                return
            error.headers.update(self.reply.call_headers(self.call.level))
            raise

    async def _attempt(self, handle: EngineHandle) -> bool:
        """Send the call when its turn comes, and relay the answer; return False if it is to be sent again."""
        async with handle.queue.turn(self.call) as may_send:
            if not may_send:
                return False
            try:
                await pause_after(self.call.body.size_bytes)
                response = await self._send(handle)
                handle.queue.on_reached(self.call)
                handle.ended.on_received(self.ended)
                if self.call.is_last:
                    handle.ended.on_last_received(self.call.arrival.program_id)
                await self._relay(handle, response)
            except EngineUnavailableError as error:
                if error.is_unsent:
                    handle.queue.on_unreached(self.call)
                else:
                    await self._check_repeat(error)
                return False
        return True

    async def _send(self, handle: EngineHandle) -> ClientResponse:
        """Send the call, and once more if the engine has not read it; return the response at its head."""
        upstream, path = handle.upstream, self.call.dialect.path
        try:
            return await upstream.send("POST", path, *self._encode(handle))
        except EngineResetError as error:
            # A healthy engine also closes connections that were idle for too long.
            if await self._has_died():
                raise upstream.unavailable(error) from error
            upstream.on_retry()
            return await upstream.send("POST", path, *self._encode(handle), is_retry=True)

    def _encode(self, handle: EngineHandle) -> tuple[Mapping[str, str], bytes]:
        # Each attempt has its own id in the engine, and so its own body.
        self.registry.on_sent(self.call)
        call, args = self.call, dict[str, str | float]()
        if call.dialect.takes_identity:
            self.ended = handle.ended.on_sent(call.arrival.program_id)
            args = self.arguments.of(call, self.ended)
        return engine_request(call, handle.engine.kind, args)

    async def _check_repeat(self, error: EngineUnavailableError) -> None:
        """Raise the error again unless the call may be sent to another engine because its engine died."""
        if self.reply.has_content:
            raise error
        if not await self._has_died():
            # Its work goes on, perhaps: neither we nor the client may have it done twice.
            raise self.call.handle.upstream.bad_answer(MAY_HAVE_RUN) from error
        if self.was_repeated:
            # The call may be what kills engines: no client library should send it a third time.
            error.forbid_retry()
            raise error
        self.was_repeated = True
        self.registry.on_repeat(self.call)

    async def _relay(self, handle: EngineHandle, response: ClientResponse) -> None:
        if response.status >= 400:
            await self._relay_error(handle, response)
        elif response.content_type == "text/event-stream":
            await self._relay_stream(handle, response)
        else:
            await self._relay_body(handle, response)

    async def _relay_error(self, handle: EngineHandle, response: ClientResponse) -> None:
        content = await handle.upstream.read(response)
        if response.status >= 500 and await self._has_died():
            raise self._death()
        self.outcome = Outcome.REJECTED
        receipt = await self.registry.settle(self.call, self.outcome, has_reports=False)
        await self.reply.stop_waiting()
        if not self.reply.has_begun:
            await self.reply.send_whole(response, content, self.call.level)
            return
        error = handle.upstream.bad_answer(f"answered with status {response.status}")
        event = engine_error_event(content, error, self.call.dialect.errors)
        await self.reply.send_part(event + self._comment(receipt), is_last=True)

    async def _relay_body(self, handle: EngineHandle, response: ClientResponse) -> None:
        content = await handle.upstream.read(response)
        await self.reply.stop_waiting()
        if self.reply.has_begun:
            raise handle.upstream.bad_answer("did not answer with a stream of events")
        is_json = response.content_type == "application/json" and "content-encoding" not in response.headers
        if is_json and not is_object(content):
            raise handle.upstream.bad_answer("did not answer with a JSON object")
        if self.call.marked_id:
            # Its arguments are none of the client's business.
            key = self.call.engine_key.rpartition("~")[2]
            content = content.replace(self.call.marked_id.encode(), key.encode())
        if self.call.dialect.takes_identity:
            self.call.note_ids(content)
        if self.call.dialect.output_fields:
            self.call.answer_bytes = len(content)
        stated = partial(read_usage, content, response.headers.get("metadata", ""))
        receipt = await self.registry.settle(
            self.call, Outcome.OK, has_reports=self._has_reports, read_usage=stated
        )
        if is_json:
            content = receipt.spliced_into(content)
        await self.reply.send_whole(response, content, receipt.level or self.call.level)

    async def _relay_stream(self, handle: EngineHandle, response: ClientResponse) -> None:
        stream = self.stream = RelayedStream(self.call)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise handle.upstream.bad_answer("compressed its stream of events, which was not asked for")
            await self._relay_events(handle, response, stream)
            await self._end_stream(handle, response, stream)
        finally:
            if stream.is_complete:
                handle.upstream.let_end(response)
            else:
                # The engine must abort a call whose stream is not read to its end.
                response.close()

    async def _relay_events(
        self, handle: EngineHandle, response: ClientResponse, stream: RelayedStream
    ) -> None:
        """Relay a stream up to its last event, or to its end without one."""
        reply = self.reply
        while not stream.is_complete and (chunk := await handle.upstream.read_part(response)):
            is_first = not (reply.has_content or stream.held_bytes)
            if is_first and not begins_stream(chunk):
                raise handle.upstream.bad_answer("did not answer with a stream of events")
            events = stream.feed(chunk)
            if stream.has_error and await self._has_died():
                raise self._death()
            if events:
                await reply.begin_stream(response)
                await reply.send_part(events)
            handle.upstream.check_size(stream.held_bytes)

    async def _end_stream(
        self, handle: EngineHandle, response: ClientResponse, stream: RelayedStream
    ) -> None:
        await self.reply.begin_stream(response)
        rest = stream.flush()
        self.outcome = stream.outcome()
        receipt = await self.registry.settle(
            self.call, self.outcome, has_reports=self._has_reports, read_usage=stream.usage
        )
        if self.outcome is Outcome.TRUNCATED:
            error = handle.upstream.bad_answer("ended its stream without the last event")
            # In place of an event that was cut off.
            rest = self._error_event(error)
        await self.reply.send_part(rest + self._comment(receipt) + stream.last_event, is_last=True)

    def _comment(self, receipt: Receipt) -> bytes:
        return receipt.comment() if self.call.takes_comments else b""

    async def _break_off(self, error: GatewayError) -> None:
        """End a stream with an error event, because its head is out already."""
        receipt = await self.registry.settle(
            self.call, self.outcome, has_reports=False, read_usage=self._read_usage
        )
        is_final = self.reply.has_content or not isinstance(error, UnavailableError)
        event = self._error_event(error, is_final=is_final)
        await self.reply.send_part(event + self._comment(receipt), is_last=True)

    def _error_event(self, error: GatewayError, *, is_final: bool = True) -> bytes:
        """Return the last event of a stream that fails; a part of an event before it is dropped."""
        response = None if self.stream is None else self.stream.response
        return error_event(error, self.call.dialect.errors, is_final=is_final, response=response)

    def _read_usage(self) -> Usage | None:
        """Return the usage that has come with an answer that broke off."""
        return None if self.stream is None else self.stream.usage()

    async def _settle_unanswered(self) -> None:
        was_sent = self.call.sent_s is not None
        did_run = was_sent and self.outcome in (Outcome.ABORTED, Outcome.TIMEOUT, Outcome.BAD_ANSWER)
        await self.registry.settle(
            self.call,
            self.outcome,
            has_reports=did_run and self._has_reports,
            read_usage=self._read_usage,
        )

    async def _answer_cut_off(self) -> None:
        """Answer a call that the shutdown cut off, if it can still be answered.

        Raises:
            ShuttingDownError: if nothing was sent yet; the error handler answers.
        """
        error = ShuttingDownError()
        if not self.reply.has_begun:
            error.headers.update(self.reply.call_headers(self.call.level))
            raise error
        if self.reply.is_open:
            await self.reply.send_part(self._error_event(error), is_last=True)

    @property
    def _has_reports(self) -> bool:
        """Whether the engine's reports arrive here."""
        return self.call.dialect.takes_identity and self.call.handle.sends_reports

    async def _has_died(self) -> bool:
        return await self.call.handle.queue.has_died(self.call)

    def _death(self) -> EngineUnavailableError:
        return EngineUnavailableError(f"engine {self.call.engine} died while it answered")


def _outcome_of(error: GatewayError) -> Outcome:
    if isinstance(error, EngineTimeoutError):
        return Outcome.TIMEOUT
    if isinstance(error, InvalidRequestError):
        return Outcome.REJECTED
    return Outcome.BAD_ANSWER if isinstance(error, EngineAnswerError) else Outcome.UNAVAILABLE
