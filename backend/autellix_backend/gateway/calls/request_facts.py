"""What logs, traces and the router read of a call's request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
"""The operation of a path by OpenTelemetry's GenAI names; the others are chats."""
MAX_MODEL_CHARACTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a request asks for, as far as logs and traces show it."""

    operation: str = "chat"
    model: str | None = None
    is_streaming: bool = False
    traceparent: str | None = None


def read_request(path: str, headers: Mapping[str, str], fields: Mapping[str, msgspec.Raw]) -> RequestFacts:
    """Read the facts of a request; a value of the wrong type counts as absent."""
    model = _decoded(fields.get("model"))
    return RequestFacts(
        operation=OPERATIONS.get(path, "chat"),
        model=model[:MAX_MODEL_CHARACTERS] if isinstance(model, str) else None,
        is_streaming=_decoded(fields.get("stream")) is True,
        traceparent=headers.get("traceparent"),
    )


def _decoded(raw: msgspec.Raw | None) -> object:
    # The body was decoded as a whole, so each of its fields is sound JSON.
    return None if raw is None else msgspec.json.decode(raw)
