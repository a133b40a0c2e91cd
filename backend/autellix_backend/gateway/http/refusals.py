"""Error responses in the OpenAPI document: their texts and their two forms."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from autellix_backend.gateway.errors import ErrorShape

_STATUS_TEXTS = {
    400: "A malformed body, header, parameter or id; `param` names it",
    401: "A missing or unknown API key, or a missing or wrong session token",
    403: "Admins only",
    404: "Unknown session, program or engine",
    409: "The engine's name is taken, or no engine would be left that accepts calls",
    413: "The body is too large",
    415: "The body is compressed",
    429: "A limit is reached; `Retry-After` is the time until a retry",
    500: "The gateway failed",
    502: "The engine's answer could not be used",
    503: "No engine answers, or the gateway is shutting down; the call may be repeated",
    504: "The engine did not answer in time",
}


class OpenAIErrorFields(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | int | None = None


class OpenAIError(BaseModel):
    """An error in OpenAI's form."""

    error: OpenAIErrorFields


class AnthropicErrorFields(BaseModel):
    """Anthropic's error object."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: AnthropicErrorFields


def refusals(*statuses: int, shape: ErrorShape = ErrorShape.OPENAI) -> dict[int | str, dict[str, Any]]:
    """Return the description of these error statuses, for a route's `responses`."""
    model = AnthropicError if shape is ErrorShape.ANTHROPIC else OpenAIError
    # By reference: for a model FastAPI would build a serializer per status and route.
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {status: {"description": _STATUS_TEXTS[status], "content": content} for status in statuses}
