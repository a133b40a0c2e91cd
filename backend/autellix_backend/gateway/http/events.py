"""The event feed over HTTP, as server-sent events: `GET /autellix/v1/events`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.errors import TooManySubscribersError
from autellix_backend.gateway.explain.event_feed import Event, EventFeed, Subscription
from autellix_backend.gateway.http.bodies import Id
from autellix_backend.gateway.http.components import Closing, Feed, Viewer, feed_only_to_owners
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.gateway.requests import run_while_connected
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_wire.paths import API_PREFIX

EVENTS_PATH = API_PREFIX + "/events"
KEEP_ALIVE_S = 15.0
"""How often a silent feed sends a comment, so that no proxy considers the connection dead."""
MAX_SUBSCRIBERS = 256
"""Feeds open at once: each may hold a thousand events in memory."""
MAX_TENANT_SUBSCRIBERS = 32
"""Feeds of one tenant, where there are tenants."""
FAREWELL_S = 1.0
"""How long the last send may take where the client does not read."""


class _EventStream(Response):
    """Events as they happen, until the client disconnects or the server ends."""

    media_type = "text/event-stream"

    def __init__(
        self, feed: EventFeed, closing: asyncio.Event, viewer: Tenant, program_ids: tuple[str, ...] | None
    ) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        self._feed = feed
        self._closing = closing
        self._viewer = viewer
        self._program_ids = program_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - it is ASGI
        if self._feed.subscriber_count >= MAX_SUBSCRIBERS:
            raise TooManySubscribersError(MAX_SUBSCRIBERS)
        if self._viewer.name and self._feed.count_of(self._viewer) >= MAX_TENANT_SUBSCRIBERS:
            raise TooManySubscribersError(MAX_TENANT_SUBSCRIBERS, "the tenant")
        with self._feed.subscribe(self._viewer, self._program_ids) as subscription:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            relay = asyncio.create_task(_relay(subscription, self._viewer, send))
            try:
                await run_while_connected(self._closing.wait(), receive)
            finally:
                relay.cancel()
                await asyncio.wait((relay,))
            if self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await send({"type": "http.response.body", "body": b""})


router = APIRouter(tags=["operators"], responses=refusals(400, 401, 500, 503))


@router.get(
    EVENTS_PATH,
    status_code=200,
    response_class=_EventStream,
    dependencies=[feed_only_to_owners()],
    responses=refusals(403),
)
async def subscribe(
    viewer: Viewer, feed: Feed, closing: Closing, program: Annotated[Id | None, Query()] = None
) -> Response:
    """Stream the events of calls, programs and engines as server-sent events."""
    program_ids = None if program is None else viewer.candidates(program)
    return _EventStream(feed, closing, viewer, program_ids)


async def _relay(subscription: Subscription, viewer: Tenant, send: Send) -> None:
    """Send events as they happen; a client that does not read delays only this task."""
    # At once, so that the client knows from when on it misses nothing.
    await _send(send, b": listening\n\n")
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                events, dropped = await subscription.take()
        except TimeoutError:
            await _send(send, b": alive\n\n")
            continue
        data = b"".join(encode_event(event, viewer) for event in events)
        if dropped:
            data += _encode("dropped", {"dropped": dropped})
        await _send(send, data)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def encode_event(event: Event, viewer: Tenant) -> bytes:
    """Return an event as server-sent text, with ids as the viewer knows them."""
    program_id = None if event.program_id is None else viewer.shown(event.program_id)
    named = {} if program_id is None else {"program_id": program_id}
    return _encode(event.kind, {"at": event.at_s, **named, **event.facts})


def _encode(kind: str, content: dict[str, object]) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"
