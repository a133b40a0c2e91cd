"""The path of a call, from top to bottom: identify, choose engine, admit, send, relay, settle.

A call is settled exactly once, also when its client disconnects, its engine dies, times out or cannot
be reached, or the gateway shuts down. Until the first byte of its answer it may be sent again where it cannot
have run, or its work is lost: once if a kept connection was closed before the engine read it, and once to
another engine when its engine died or fell silent, or refused it by its own fault (`refusals.py`). Once the
head of its stream is out, what fails ends the stream with an error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from aiohttp import ClientResponse
from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.calls.outbound import EngineArguments, engine_request
from autellix_backend.gateway.calls.reception import Reception
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.reply import RelayedStream, Reply
from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.calls.sse import begins_stream, engine_error_event, error_event
from autellix_backend.gateway.calls.usage import read_usage
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.refusals import cut, error_status, fault_of, retry_after_s, words_of
from autellix_backend.gateway.engines.upstream import MAY_HAVE_RUN, EngineResetError
from autellix_backend.gateway.errors import (
    EngineAnswerError,
    EngineKeyError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    InvalidRequestError,
    ShuttingDownError,
    UnavailableError,
)
from autellix_backend.gateway.requests import run_while_connected
from autellix_backend.gateway.tenancy.intake import LONG_BODY_BYTES, Intake
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.raw_json import is_object
from autellix_backend.reports.receipt import Receipt


@dataclass(frozen=True, slots=True, eq=False)
class CallEndpoint:
    """ASGI app of one path that makes calls. This is the hot path: no model classes, no middleware."""

    dialect: Dialect
    tenants: Tenants
    intake: Intake
    reception: Reception
    router: Router
    registry: CallRegistry
    arguments: EngineArguments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call.

        Raises:
            GatewayError: if the call fails before its answer has begun.
            ClientGoneError: if the client leaves before the end of its request.
        """
        with self.intake.hold(self.tenants.only or self.tenants.of(scope)) as hold:
            request = await self.reception.receive(self.dialect, scope, receive, hold)
            assigned = self.router.assign(request)
        # From here on the body counts as part of its call.
        try:
            call = await self.registry.begin(assigned)
            # Not before: a refused call must leave nothing in bounded tables.
            self.router.on_begun(request.identity.program)
            self.reception.resolver.remember(request.identity, request.tenant.name)
            reply = Reply(self.registry, call, send)
            await Exchange(self.router, self.registry, self.arguments, call, reply).run(receive)
        finally:
            self.router.release(assigned)


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
    doubted: tuple[EngineHandle, str] | None = None
    """The engine that did not take the client's key, and its words: its fault if another one takes it."""
    ended: tuple[str, ...] = ()
    """The ends of other programs that went with the call."""
    stream: RelayedStream | None = None
    """The stream that the engine answers with."""

    async def run(self, receive: Receive) -> None:
        """Answer the call until its client disconnects, and settle it."""
        is_cut_off = False
        if self.call.request.body.is_streaming and self.call.request.dialect.stream_ends:
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
            if self.call.inherited.has_emptied:
                await self.registry.end_emptied(self.call)
            while not await self._attempt(self.call.assigned.handle):
                self.router.reassign(self.call.assigned)
                self.registry.renew_key(self.call)
        except GatewayError as error:
            if not isinstance(error, EngineKeyError):
                self.outcome = _outcome_of(error)
                self._note_error(error)
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
                await pause_after(self.call.request.body.size_bytes)
                response = await self._send(handle)
                handle.queue.on_reached(self.call)
                if self.ended:
                    handle.ended.on_received(self.ended)
                if self.call.is_last:
                    handle.ended.on_last_received(self.call.arrival.program_id)
                return await self._relay(handle, response)
            except EngineUnavailableError as error:
                if error.is_unsent:
                    handle.queue.on_unreached(self.call)
                else:
                    await self._check_repeat(error)
                return False

    async def _send(self, handle: EngineHandle) -> ClientResponse:
        """Send the call, and once more if the engine has not read it; return the response at its head."""
        upstream, path = handle.upstream, self.call.request.dialect.path
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
        if call.request.dialect.takes_identity:
            self.ended = handle.ended.on_sent(call.arrival.program_id)
            args = self.arguments.of(call, self.ended)
        return engine_request(call, handle.engine.kind, args)

    async def _check_repeat(self, error: EngineUnavailableError) -> None:
        """Raise the error again unless the call may be sent to another engine because its engine died."""
        if self.reply.has_content:
            raise error
        if not await self._has_died():
            # Its work goes on, perhaps: neither we nor the client may have it done twice.
            raise self.call.assigned.handle.upstream.bad_answer(MAY_HAVE_RUN) from error
        if self.call.was_repeated:
            # The call may be what kills engines: no client library should send it a third time.
            error.forbid_retry()
            raise error
        self._repeat()

    def _repeat(self) -> None:
        """Have the call sent to another engine; what the first one did with it does not count."""
        call = self.call
        call.was_repeated = True
        self.outcome, call.answer.status, call.answer.reason = Outcome.ABORTED, None, None
        self.registry.on_repeat(call)

    def _is_repeated_after(
        self, handle: EngineHandle, response: ClientResponse, status: int, content: bytes
    ) -> bool:
        """Note whose fault a failed answer is; return whether another engine is to answer the call.

        Raises:
            EngineKeyError: if it is about the gateway's key, and nothing has gone out.
        """
        call, refusals, request = self.call, handle.refusals, self.call.request
        has_clients_key = handle.upstream.shows_key(request.headers)
        # A stored response that is not found is not the engine's fault.
        is_other = "previous_response_id" in request.body.fields
        model = request.body.model
        lists_model = not is_other and (model is None or model in handle.models)
        fault = fault_of(status, content, lists_model=lists_model, has_clients_key=has_clients_key)
        # What was generated before an error event is not free, whoever is at fault.
        is_clients = not fault.is_engines and not self.reply.has_content
        self.outcome = Outcome.REJECTED if is_clients else Outcome.ENGINE_ERROR
        call.answer.status, call.answer.reason = status, words_of(content)
        problem = f"{status} {call.answer.reason}"
        if fault.is_engines:
            refusals.on_fault(call.caller, problem, retry_after_s(response.headers))
        is_there_only = request.identity.engine == handle.name
        may_repeat = fault.can_repeat and not (
            self.call.was_repeated or self.reply.has_content or is_there_only
        )
        # A key of the client's own may be for an engine that is paused for others' keys.
        if not may_repeat or not handle.queue.can_move(call.caller, not fault.is_engines):
            if fault.is_gateways_key and not self.reply.has_content:
                raise EngineKeyError(handle.name, status)
            return False
        self.doubted = None if fault.is_engines else (handle, problem)
        self._repeat()
        return True

    def _note_answer(self, handle: EngineHandle) -> None:
        """Note that an engine answers the call."""
        handle.refusals.on_answered(self.call.caller)
        if self.doubted is not None:
            doubted, problem = self.doubted
            doubted.refusals.on_fault(self.call.caller, problem)

    def _note_error(self, error: GatewayError) -> None:
        """Note why the call fails, and an answer that could not be used."""
        call, answer = self.call, self.call.answer
        answer.status, answer.reason = error.status, cut(error.message)
        if isinstance(error, EngineAnswerError | EngineTimeoutError) and not self.reply.has_content:
            call.assigned.handle.refusals.on_fault(call.caller, f"{error.status:d} {answer.reason}")

    async def _relay(self, handle: EngineHandle, response: ClientResponse) -> bool:
        """Relay an answer; return False if another engine is to answer."""
        if response.status < 400 and response.content_type == "text/event-stream":
            return await self._relay_stream(handle, response)
        content = await handle.upstream.read(response)
        status = response.status if response.status >= 400 else error_status(content)
        if status is None:
            await self._relay_body(handle, response, content)
            return True
        return await self._relay_error(handle, response, status, content)

    async def _relay_error(
        self, handle: EngineHandle, response: ClientResponse, status: int, content: bytes
    ) -> bool:
        if status >= 500 and await self._has_died():
            raise self._death()
        if self._is_repeated_after(handle, response, status, content):
            return False
        receipt = await self.registry.settle(self.call, self.outcome, has_reports=False)
        await self.reply.stop_waiting()
        if not self.reply.has_begun:
            await self.reply.send_whole(response, content, self.call.level, status)
            return True
        error = handle.upstream.bad_answer(f"answered with status {status}")
        event = engine_error_event(content, error, self.call.request.dialect.errors)
        await self.reply.send_part(event + self._comment(receipt), is_last=True)
        return True

    async def _relay_body(self, handle: EngineHandle, response: ClientResponse, content: bytes) -> None:
        await self.reply.stop_waiting()
        if self.reply.has_begun:
            raise handle.upstream.bad_answer("did not answer with a stream of events")
        is_json = response.content_type == "application/json" and "content-encoding" not in response.headers
        if is_json and not is_object(content):
            raise handle.upstream.bad_answer("did not answer with a JSON object")
        if response.content_type == "text/html":
            raise handle.upstream.bad_answer(f"answered with a web page: {words_of(content)}")
        self._note_answer(handle)
        if self.call.marked_id:
            # Its arguments are none of the client's business.
            key = self.call.engine_key.rpartition("~")[2]
            content = content.replace(self.call.marked_id.encode(), key.encode())
        request, answer = self.call.request, self.call.answer
        if request.dialect.takes_identity:
            answer.note_ids(content, request.identity)
        if request.dialect.output_fields:
            answer.size_bytes = len(content)
        stated = partial(read_usage, content, response.headers.get("metadata", ""))
        receipt = await self.registry.settle(
            self.call, Outcome.OK, has_reports=self._has_reports, read_usage=stated
        )
        if is_json:
            content = receipt.spliced_into(content)
        await self.reply.send_whole(response, content, receipt.level or self.call.level, response.status)

    async def _relay_stream(self, handle: EngineHandle, response: ClientResponse) -> bool:
        stream = self.stream = RelayedStream(self.call)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise handle.upstream.bad_answer("compressed its stream of events, which was not asked for")
            if not await self._relay_events(handle, response, stream):
                self.stream = None
                return False
            await self._end_stream(handle, response, stream)
            return True
        finally:
            if stream.is_complete:
                handle.upstream.let_end(response)
            else:
                # The engine must abort a call whose stream is not read to its end.
                response.close()

    async def _relay_events(
        self, handle: EngineHandle, response: ClientResponse, stream: RelayedStream
    ) -> bool:
        """Relay a stream up to its last event, or to its end without one; return as _relay() does."""
        reply = self.reply
        while not stream.is_complete and (chunk := await handle.upstream.read_part(response)):
            is_first = not (reply.has_content or stream.held_bytes)
            if is_first and not begins_stream(chunk):
                raise handle.upstream.bad_answer("did not answer with a stream of events")
            had_error = stream.has_error
            events = stream.feed(chunk)
            if stream.has_error and not had_error:
                if await self._has_died():
                    raise self._death()
                # One before the first token may be another engine's to mend.
                status = error_status(stream.error_data) or HTTPStatus.INTERNAL_SERVER_ERROR
                if self._is_repeated_after(handle, response, status, stream.error_data):
                    return False
            elif events and not reply.has_content:
                self._note_answer(handle)
            if events:
                await reply.begin_stream(response)
                await reply.send_part(events)
            handle.upstream.check_size(stream.held_bytes)
        return True

    async def _end_stream(
        self, handle: EngineHandle, response: ClientResponse, stream: RelayedStream
    ) -> None:
        await self.reply.begin_stream(response)
        rest = stream.flush()
        if self.outcome is not Outcome.REJECTED:
            self.outcome = stream.outcome()
        if self.outcome is Outcome.TRUNCATED:
            error = handle.upstream.bad_answer("ended its stream without the last event")
            self._note_error(error)
            # In place of an event that was cut off.
            rest = self._error_event(error)
        receipt = await self.registry.settle(
            self.call, self.outcome, has_reports=self._has_reports, read_usage=stream.usage
        )
        await self.reply.send_part(rest + self._comment(receipt) + stream.last_event, is_last=True)

    def _comment(self, receipt: Receipt) -> bytes:
        return receipt.comment() if self.call.request.takes_comments else b""

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
        return error_event(error, self.call.request.dialect.errors, is_final=is_final, response=response)

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
        return self.call.request.dialect.takes_identity and self.call.assigned.handle.link.is_up

    async def _has_died(self) -> bool:
        return await self.call.assigned.handle.queue.has_died(self.call)

    def _death(self) -> EngineUnavailableError:
        return EngineUnavailableError(f"engine {self.call.engine} died while it answered")


def _outcome_of(error: GatewayError) -> Outcome:
    if isinstance(error, EngineTimeoutError):
        return Outcome.TIMEOUT
    if isinstance(error, InvalidRequestError):
        return Outcome.REJECTED
    return Outcome.BAD_ANSWER if isinstance(error, EngineAnswerError) else Outcome.UNAVAILABLE


async def pause_after(size_bytes: int) -> None:
    """Let other calls advance after a step over a body of this size, if it may have taken long."""
    if size_bytes > LONG_BODY_BYTES:
        await asyncio.sleep(0)
