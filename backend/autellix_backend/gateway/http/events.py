"""The feed of events over HTTP, as server-sent events: `GET /autellix/v1/events`."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.errors import InvalidRequestError, TooManySubscribersError
from autellix_backend.gateway.explain.event_feed import Event, EventFeed, Subscription
from autellix_backend.gateway.http.watches import Watches
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants
from autellix_wire import API_PREFIX, InvalidIdError, check_id

EVENTS_PATH = API_PREFIX + "/events"
KEEP_ALIVE_S = 15.0
"""How often a silent feed sends a comment, so that nobody in between takes the connection for dead."""
MAX_LISTENERS = 256
"""Feeds open at once: each may hold a thousand events in memory."""
FAREWELL_S = 1.0
"""How long the end of a feed may take, whose client does not read."""


class EventsEndpoint:
    """ASGI app that tells one listener of events until it goes or the server ends."""

    def __init__(self, feed: EventFeed, watches: Watches, tenants: Tenants) -> None:
        self._feed = feed
        self._watches = watches
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        viewer = self._tenants.of(scope)
        program_ids = _program_ids(scope, viewer)
        if self._feed.listener_count >= MAX_LISTENERS:
            raise TooManySubscribersError(MAX_LISTENERS)
        with self._feed.subscribe(viewer, program_ids) as subscription:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            telling = asyncio.create_task(_tell(subscription, viewer, send))
            try:
                is_gone = await self._watches.until_gone(receive)
            finally:
                telling.cancel()
                await asyncio.wait((telling,))
            if not is_gone:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await send({"type": "http.response.body", "body": b""})


async def _tell(subscription: Subscription, viewer: Tenant, send: Send) -> None:
    """Send events as they come; a client that does not read makes this wait, and nobody else."""
    # At once, so that the listener knows that it will miss nothing from here on.
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
    """Return an event as it goes over the wire, with the ids that the viewer knows."""
    program_id = None if event.program_id is None else viewer.shown(event.program_id)
    named = {} if program_id is None else {"program_id": program_id}
    return _encode(event.kind, {"at": event.at_s, **named, **event.facts})


def _encode(kind: str, content: dict[str, object]) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"


def _program_ids(scope: Scope, viewer: Tenant) -> tuple[str, ...] | None:
    found = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("program")
    if found is None:
        return None
    try:
        return viewer.candidates(check_id(found[-1], "program"))
    except InvalidIdError as error:
        raise InvalidRequestError(str(error), param="program") from error
