"""What every endpoint reads of an ASGI request: headers, body within bounds, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.types import Message, Receive, Scope

from autellix_backend.gateway.errors import BodyTooLargeError

OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
"""What a path asks for, by GenAI's names; the others are chats."""
MAX_MODEL_CHARACTERS = 256


class ClientGoneError(Exception):
    """The client went away before its request was complete; there is nobody to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a request asks for, as far as logs and traces say it."""

    operation: str = "chat"
    model: str | None = None
    is_streaming: bool = False
    traceparent: str | None = None


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


def read_request(path: str, headers: Mapping[str, str], fields: Mapping[str, msgspec.Raw]) -> RequestFacts:
    """Read what logs and traces say of a request; a value of the wrong kind counts as absent."""
    model = _plain(fields.get("model"))
    return RequestFacts(
        operation=OPERATIONS.get(path, "chat"),
        model=model[:MAX_MODEL_CHARACTERS] if isinstance(model, str) else None,
        is_streaming=_plain(fields.get("stream")) is True,
        traceparent=headers.get("traceparent"),
    )


def _plain(raw: msgspec.Raw | None) -> object:
    # The body was decoded as a whole, so each of its fields is sound JSON.
    return None if raw is None else msgspec.json.decode(raw)
