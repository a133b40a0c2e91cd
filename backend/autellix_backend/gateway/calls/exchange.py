"""One call's way to the engine and back: relayed, accounted for, and answered whatever happens."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
import msgspec
from starlette.types import Send

from autellix_backend.gateway.calls.body import CallBody
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.calls.outbound import engine_body, engine_headers
from autellix_backend.gateway.calls.registry import CallRegistry, OpenCall, Outcome, Receipt
from autellix_backend.gateway.calls.sse import StreamEndSplitter, error_event, holds_error, receipt_comment
from autellix_backend.gateway.calls.usage import StreamTail, read_usage
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.engines.router import Assignment, Router
from autellix_backend.gateway.engines.upstream import EngineResetError, response_headers
from autellix_backend.gateway.errors import (
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    ShuttingDownError,
)
from autellix_wire import CALL_ID, ENGINE, IDENTITY_SOURCE, PROGRAM_ID, QUEUE_LEVEL


class Exchange:
    """One call's way to the engine and back."""

    def __init__(
        self,
        pool: EnginePool,
        router: Router,
        assignment: Assignment,
        desk: CallRegistry,
        call: OpenCall,
        dialect: Dialect,
        send: Send,
    ) -> None:
        self._pool = pool
        self._router = router
        self._assignment = assignment
        self._desk = desk
        self._call = call
        self._dialect = dialect
        self._send = send
        self._outcome = Outcome.ABORTED
        self._was_repeated = False
        """Whether an engine died under it and it was sent to the next."""
        self._has_begun = False
        """Whether the client has the head of its answer."""
        self._is_stream_open = False

    async def run(self, headers: Mapping[str, str], body: CallBody) -> None:
        """Relay the call."""
        try:
            while not await self._attempt(headers, body):
                self._desk.recall(self._call)
                self._router.reassign(self._assignment)
                self._call.engine = self._assignment.handle.name
        except GatewayError as error:
            self._outcome = _outcome_of(error)
            error.receipt.update(self._receipt_headers(self._call.level))
            raise

    async def close(self) -> None:
        """Settle the call, if that has not happened."""
        was_sent = self._call.sent_s is not None
        did_run = was_sent and self._outcome in (Outcome.ABORTED, Outcome.TIMEOUT)
        has_account = did_run and self._has_account
        await self._desk.settle(self._call, self._outcome, has_account=has_account)

    async def tell_end(self) -> None:
        """Answer a call that the end of the server cut off, as far as it can still be answered.

        Raises:
            ShuttingDownError: if nothing was sent yet; for the error handler to answer.
        """
        error = ShuttingDownError()
        if not self._has_begun:
            error.receipt.update(self._receipt_headers(self._call.level))
            raise error
        if self._is_stream_open:
            await self._send_part(error_event(error, self._dialect.errors), is_last=True)

    async def _attempt(self, headers: Mapping[str, str], body: CallBody) -> bool:
        """Send the call when its turn comes; return False if it is to be sent again."""
        async with self._pool.turn(self._handle, self._call.queued) as may_send:
            return may_send and await self._send_to_engine(headers, body)

    async def _send_to_engine(self, headers: Mapping[str, str], body: CallBody) -> bool:
        upstream, path = self._handle.upstream, self._dialect.path
        sent = engine_headers(
            headers, upstream.kind, self._call.identity.program, session_header=upstream.session_header
        )
        try:
            try:
                response = await upstream.send("POST", path, sent, self._encode(body))
            except EngineResetError:
                upstream.on_retry()
                response = await upstream.send("POST", path, sent, self._encode(body), is_retry=True)
            self._handle.queue.on_reached(self._call.queued)
            await self._relay(response)
        except EngineUnavailableError as error:
            if error.is_unsent:
                self._handle.queue.on_unreached(self._call.queued)
            else:
                await self._consider_repeat(error)
            return False
        return True

    @property
    def _handle(self) -> EngineHandle:
        """The engine that the call is at."""
        return self._assignment.handle

    @property
    def _wants_usage(self) -> bool:
        """Whether anybody needs the token counts of the answer; an account has them too."""
        return self._desk.wants_usage or not self._handle.sends_reports

    @property
    def _has_account(self) -> bool:
        """Whether its engine tells what the call cost."""
        return self._dialect.takes_identity and self._handle.sends_reports

    async def _consider_repeat(self, error: EngineUnavailableError) -> None:
        """Raise the error again unless the call may go to the engine that comes after the one that died."""
        if self._has_begun or not await self._has_died():
            raise error
        if self._was_repeated:
            # The call may be what kills engines: nobody's library is to send it a third time by itself.
            error.can_retry = False
            raise error
        self._was_repeated = True
        self._desk.count_repeat(self._call)

    async def _relay(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            await self._relay_error(response)
        elif response.content_type == "text/event-stream":
            await self._relay_stream(response)
        else:
            await self._relay_body(response)

    def _encode(self, body: CallBody) -> bytes:
        self._desk.send(self._call)
        call = self._call
        args = call.engine_args() if self._dialect.takes_identity else {}
        return engine_body(body, self._handle.upstream.kind, args, tenant=call.tenant.name)

    async def _relay_error(self, response: aiohttp.ClientResponse) -> None:
        content = await self._handle.upstream.read(response)
        if response.status >= 500 and await self._has_died():
            raise self._death()
        self._outcome = Outcome.REJECTED
        await self._desk.settle(self._call, self._outcome, has_account=False)
        await self._start(response, content_length=len(content), level=self._call.level)
        await self._send({"type": "http.response.body", "body": content})

    async def _relay_body(self, response: aiohttp.ClientResponse) -> None:
        content = await self._handle.upstream.read(response)
        if self._wants_usage:
            self._call.usage = read_usage(content)
        receipt = await self._desk.settle(self._call, Outcome.OK, has_account=self._has_account)
        if response.content_type == "application/json" and "content-encoding" not in response.headers:
            content = splice_receipt(content, receipt)
        await self._start(response, content_length=len(content), level=receipt.level or self._call.level)
        await self._send({"type": "http.response.body", "body": content})

    async def _relay_stream(self, response: aiohttp.ClientResponse) -> None:
        splitter = StreamEndSplitter(self._dialect.stream_ends)
        end = StreamTail() if self._wants_usage else None
        try:
            tail = b""
            async for chunk in self._handle.upstream.chunks(response):
                if holds_error(chunk) and await self._has_died():
                    raise self._death()
                await self._begin_stream(response)
                head, found = (b"", chunk) if tail else splitter.feed(chunk)
                if end is not None:
                    end.feed(head)
                if head:
                    await self._send_part(head)
                tail += found
            await self._begin_stream(response)
            if end is not None:
                self._call.usage = end.usage(tail)
            receipt = await self._desk.settle(self._call, Outcome.OK, has_account=self._has_account)
            await self._send_part(splitter.flush() + _comment(receipt) + tail, is_last=True)
        except GatewayError as error:
            if not self._has_begun:
                raise
            await self._break_off(error, splitter.flush())
        finally:
            # Only a stream that ended by itself may give its connection back; any other must abort the call.
            if not response.content.at_eof():
                response.close()

    async def _begin_stream(self, response: aiohttp.ClientResponse) -> None:
        """Send the head, with the first bytes behind it: until then the call may go to another engine."""
        if not self._has_begun:
            await self._start(response, content_length=None, level=self._call.level)
            self._is_stream_open = True

    async def _has_died(self) -> bool:
        return await self._handle.queue.has_died(self._call.queued)

    def _death(self) -> EngineUnavailableError:
        return EngineUnavailableError(f"engine {self._call.engine} died while it answered")

    async def _break_off(self, error: GatewayError, rest: bytes) -> None:
        """End a stream whose head is out already: the error can only come as an event."""
        self._outcome = _outcome_of(error)
        receipt = await self._desk.settle(self._call, self._outcome, has_account=False)
        await self._send_part(
            rest + error_event(error, self._dialect.errors) + _comment(receipt), is_last=True
        )

    async def _send_part(self, data: bytes, *, is_last: bool = False) -> None:
        self._desk.note_first_bytes(self._call)
        self._is_stream_open = not is_last
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _start(
        self, response: aiohttp.ClientResponse, *, content_length: int | None, level: int
    ) -> None:
        headers = [*response_headers(response.headers), *_encoded(self._receipt_headers(level))]
        if content_length is not None:
            headers.append((b"content-length", str(content_length).encode()))
        self._has_begun = True
        self._assignment.admission.release()
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    def _receipt_headers(self, level: int) -> dict[str, str]:
        identity = self._call.identity
        return {
            PROGRAM_ID: self._call.shown_program,
            CALL_ID: identity.call,
            IDENTITY_SOURCE: identity.source,
            ENGINE: self._call.engine,
            QUEUE_LEVEL: str(level),
            **({} if self._call.permit is None else self._call.permit.headers),
        }


def splice_receipt(content: bytes, receipt: Receipt) -> bytes:
    """Add the receipt as the last field of a JSON object; what is none stays as it is."""
    end = content.rstrip()
    if not (end.startswith(b"{") and end.endswith(b"}")):
        return content
    head = end[:-1]
    comma = b"" if head.rstrip().endswith(b"{") else b","
    return head + comma + b'"autellix":' + msgspec.json.encode(receipt) + b"}"


def _comment(receipt: Receipt) -> bytes:
    return receipt_comment(msgspec.json.encode(receipt))


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def _outcome_of(error: GatewayError) -> Outcome:
    return Outcome.TIMEOUT if isinstance(error, EngineTimeoutError) else Outcome.UNAVAILABLE
