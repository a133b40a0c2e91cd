"""The headers and the bounded body of an ASGI request."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Message, Receive, Scope

from autellix_backend.gateway.errors import BodyTooLargeError


class ClientGoneError(Exception):
    """The client went away before its request was complete; there is nobody to answer."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers by their lower-case names."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(headers: Mapping[str, str], receive: Receive, max_bytes: int) -> bytes:
    """Read a request's body.

    Raises:
        BodyTooLargeError: as soon as it is known to exceed `max_bytes`.
        ClientGoneError: if the client leaves before its end.
    """
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLargeError(max_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > max_bytes:
            raise BodyTooLargeError(max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)
