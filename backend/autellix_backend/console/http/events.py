"""The event feed over HTTP, as server-sent events: `GET /autellix/v1/events`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from autellix_backend.console.explain.event_feed import Event
from autellix_backend.console.http.parameters import ConsoleParts, feed_only_to_owners
from autellix_backend.console.wiring import Console
from autellix_backend.gateway.errors import TooManySubscribersError
from autellix_backend.gateway.http.bodies import Id
from autellix_backend.gateway.http.parameters import Viewer
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.gateway.requests import read_headers
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_wire.paths import API_PREFIX

EVENTS_PATH = API_PREFIX + "/events"
KEEP_ALIVE_S = 15.0
"""How often a silent feed sends a comment, so that no proxy considers the connection dead."""
MAX_SUBSCRIBERS = 256
"""Feeds open at once: each may hold a thousand events in memory."""
MAX_TENANT_SUBSCRIBERS = 32
"""Feeds of one tenant, where there are tenants."""


class _EventStream(StreamingResponse):
    """Events as they happen, until the client disconnects or the server ends."""

    media_type = "text/event-stream"


router = APIRouter(tags=["operators"], responses=refusals(400, 401, 500, 503))


@router.get(
    EVENTS_PATH,
    status_code=200,
    response_class=_EventStream,
    dependencies=[Depends(feed_only_to_owners)],
    responses=refusals(403),
)
async def subscribe(
    request: Request, viewer: Viewer, console: ConsoleParts, program: Annotated[Id | None, Query()] = None
) -> StreamingResponse:
    """Stream the events of calls, programs and engines as server-sent events, as long as the key is good."""
    program_ids = None if program is None else viewer.candidates(program)
    if console.feed.subscriber_count >= MAX_SUBSCRIBERS:
        raise TooManySubscribersError(MAX_SUBSCRIBERS)
    if viewer.name and console.feed.count_of(viewer) >= MAX_TENANT_SUBSCRIBERS:
        raise TooManySubscribersError(MAX_TENANT_SUBSCRIBERS, "the tenant")
    is_admitted = partial(console.gateway.tenants.admits, read_headers(request.scope), viewer)
    events = _events(console, viewer, program_ids, is_admitted)
    return _EventStream(events, headers={"cache-control": "no-store"})


async def _events(
    console: Console,
    viewer: Tenant,
    program_ids: tuple[str, ...] | None,
    is_admitted: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield events until the server or the key ends; a client that does not read delays only itself."""
    ending = asyncio.create_task(console.gateway.closing.wait())
    try:
        with console.feed.subscribe(viewer, program_ids) as subscription:
            # At once, so that the client knows from when on it misses nothing.
            yield b": listening\n\n"
            while not ending.done():
                taking = asyncio.create_task(subscription.take())
                try:
                    await asyncio.wait(
                        (taking, ending), timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    # Also where the client disconnects meanwhile. Nothing happens to a task that is done.
                    taking.cancel()
                if not is_admitted():
                    break
                if taking.done():
                    yield _text_of(*taking.result(), viewer)
                elif not ending.done():
                    yield b": alive\n\n"
    finally:
        ending.cancel()


def _text_of(events: Iterable[Event], dropped: int, viewer: Tenant) -> bytes:
    text = b"".join(encode_event(event, viewer) for event in events)
    return text + _encode("dropped", {"dropped": dropped}) if dropped else text


def encode_event(event: Event, viewer: Tenant) -> bytes:
    """Return an event as server-sent text, with ids as the viewer knows them."""
    program_id = None if event.program_id is None else viewer.shown(event.program_id)
    named = {} if program_id is None else {"program_id": program_id}
    return _encode(event.kind, {"at": event.at_s, **named, **event.facts})


def _encode(kind: str, content: dict[str, object]) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"
