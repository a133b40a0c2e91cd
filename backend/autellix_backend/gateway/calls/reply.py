"""The answer to a call's client: its head with the call's ids and engine, and its body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import ClientResponse
from starlette.types import Send

from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.router import Assignment
from autellix_backend.gateway.engines.upstream import response_headers
from autellix_wire.headers import CALL_ID, ENGINE, IDENTITY_SOURCE, PROGRAM_ID, QUEUE_LEVEL


@dataclass(slots=True, eq=False)
class Reply:
    """The response to one call; its start frees the call's share of the engine's bounds."""

    registry: CallRegistry
    assignment: Assignment
    call: OpenCall
    send: Send
    has_begun: bool = False
    """Whether the client has the head."""
    is_open: bool = False
    """Whether the client expects more of a stream."""

    async def send_whole(self, response: ClientResponse, content: bytes, level: int) -> None:
        """Send an engine's answer with this content, from a call that ended at a level."""
        length = (b"content-length", str(len(content)).encode())
        await self._begin(response, [*self._head(level), length])
        await self.send({"type": "http.response.body", "body": content})

    async def begin_stream(self, response: ClientResponse) -> None:
        """Send the head of a stream, at its first bytes: until then the call may go to another engine."""
        await self._begin(response, self._head(self.call.level))
        self.is_open = True

    async def send_part(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream."""
        if self.call.first_bytes_s is None:
            self.registry.on_first_bytes(self.call)
        self.is_open = not is_last
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def call_headers(self, level: int) -> Mapping[str, str]:
        """Return the headers that describe the call, of its answer or of the error in its place."""
        return {
            PROGRAM_ID: self.call.shown_program,
            CALL_ID: self.call.start.call_id,
            IDENTITY_SOURCE: self.call.request.identity.source,
            ENGINE: self.call.engine,
            QUEUE_LEVEL: str(level),
            **self.call.rate_headers,
        }

    def _head(self, level: int) -> list[tuple[bytes, bytes]]:
        headers = self.call_headers(level).items()
        return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]

    async def _begin(self, response: ClientResponse, own: list[tuple[bytes, bytes]]) -> None:
        headers = [*response_headers(response.raw_headers), *own]
        self.has_begun = True
        self.assignment.space.release()
        await self.send({"type": "http.response.start", "status": response.status, "headers": headers})
