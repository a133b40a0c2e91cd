"""An ASGI request: its headers, its bounded body, and its client's disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.types import Message, Receive, Scope

from autellix_backend.gateway.errors import (
    BodyTooLargeError,
    ContentEncodingError,
    GatewayError,
    InvalidRequestError,
    RequestTimeoutError,
)
from autellix_backend.gateway.tenancy.intake import LONG_BODY_BYTES, BodyHold
from autellix_backend.raw_json import MAX_MARKS, ValueMarks, count_marks

MAX_LENGTH_DIGITS = 18
"""Digits of a Content-Length that are read: the parser refuses longer numbers, so only zeros precede them."""
_HEADERS = "autellix.headers"
"""Key of the decoded headers in a request's state."""
BODY_GRACE_S = 30.0
MIN_BODY_BYTES_PER_S = 8 * 1024
"""The least rate of a body after the grace period: a slow one holds memory and a connection."""
CHECKED_BYTES = 256 * 1024
"""Bytes of a long body between two pauses: a third of a millisecond."""


class ClientGoneError(Exception):
    """The client went away before its request was complete; no answer can be sent."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers by their lower-case names, decoded once for all who read them."""
    state = scope.setdefault("state", {})
    headers: dict[str, str] | None = state.get(_HEADERS)
    if headers is None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        state[_HEADERS] = headers
    return headers


def client_of(scope: Scope) -> dict[str, str]:
    """Return the address that a request came from, and the one that a proxy names, for logs."""
    address = scope.get("client")
    named = read_headers(scope).get("x-forwarded-for", "")
    return {"client": address[0] if address else "a socket", "forwarded_for": named}


async def read_body(
    headers: Mapping[str, str], receive: Receive, hold: BodyHold, max_bytes: int, setting: str | None = None
) -> bytes:
    """Read a request's body.

    Args:
        headers: The request's, by their lower-case names.
        receive: The request's.
        hold: Counts the bytes as they come.
        max_bytes: The most bytes of this body.
        setting: The setting that holds the limit, if any.

    Raises:
        ContentEncodingError: if it is compressed.
        BodyTooLargeError: as soon as it is known to exceed `max_bytes`, or what its tenant may send at all.
        LimitError: as soon as it does with the tenant's other calls.
        IntakeFullError: if the gateway receives too many bytes of bodies at once.
        ClientGoneError: if the client leaves before its end.
        RequestTimeoutError: if it comes too slowly.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ContentEncodingError(encoding)
    declared = headers.get("content-length", "")
    if declared.isdecimal():
        declared_bytes = int(declared[-MAX_LENGTH_DIGITS:])
        if declared_bytes > max_bytes:
            raise BodyTooLargeError(max_bytes, setting)
        hold.expect(declared_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(BODY_GRACE_S) as deadline:
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size_bytes += len(part)
                if size_bytes > max_bytes:
                    raise BodyTooLargeError(max_bytes, setting)
                hold.add(len(part))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
                deadline.reschedule(began_s + BODY_GRACE_S + size_bytes / MIN_BODY_BYTES_PER_S)
    except TimeoutError:
        raise RequestTimeoutError(
            f"{size_bytes} bytes of its body came; expected {MIN_BODY_BYTES_PER_S} bytes a second at least"
        ) from None


async def check_values(data: bytes, hold: BodyHold) -> None:
    """Check that a long body is quick to parse, with pauses.

    Raises:
        InvalidRequestError: if it holds too many values.
    """
    if len(data) <= LONG_BODY_BYTES or not await _exceeds(count_marks, data, hold, CHECKED_BYTES):
        return
    # Its texts may hold most of them: these are quick to skip, and what an agent reads may be JSON.
    if await _exceeds(ValueMarks().count, data, hold, CHECKED_BYTES // 64):
        raise InvalidRequestError(
            f"the body holds more than {MAX_MARKS} lists, objects, fields and items; expected fewer"
        )


async def _exceeds(count: Callable[[bytes], int], data: bytes, hold: BodyHold, part_bytes: int) -> bool:
    marks = 0
    for start in range(0, len(data), part_bytes):
        marks += count(data[start : start + part_bytes])
        if marks > MAX_MARKS:
            return True
        await hold.pause()
    return False


async def pause_after(size_bytes: int) -> None:
    """Let other calls advance after a step over a body of this size, if it may have taken long."""
    if size_bytes > LONG_BODY_BYTES:
        await asyncio.sleep(0)


async def run_while_connected(work: Coroutine[Any, Any, object], receive: Receive) -> None:
    """Run work until it ends or the client of a request disconnects, and cancel it then.

    Raises:
        CancelledError: if this is cancelled before the work has ended; the work is cancelled too.
    """
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    # The work has no task of its own: at hundreds of calls a second each task counts.
    watching = asyncio.create_task(watch())
    cancellations = task.cancelling()
    try:
        await work
    except (asyncio.CancelledError, GatewayError):
        # A client that has gone reads no error.
        if not is_gone or task.cancelling() > cancellations + 1:
            raise
    finally:
        watching.cancel()
        if is_gone:
            task.uncancel()
