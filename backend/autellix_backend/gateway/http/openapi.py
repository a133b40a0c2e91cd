"""The OpenAPI document, which FastAPI generates from the routes, and what this module adds to it.

Of the engine's endpoints it describes what the gateway itself reads and adds; the engine checks the other
fields of a request.
"""

from __future__ import annotations

import copy
import importlib.metadata
import re
from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Header
from fastapi.openapi.constants import REF_PREFIX
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.http.bodies import Id
from autellix_backend.gateway.http.refusals import AnthropicError, OpenAIError, refusals
from autellix_backend.identity.hints import HINT_HEADERS, ID_SCHEMA
from autellix_backend.reports.receipt import Receipt
from autellix_wire.headers import (
    CALL_ID,
    ENGINE,
    FINAL,
    FLAGS,
    IDENTITY_SOURCE,
    INTERCEPTIONS,
    PARENT_IDS,
    PROGRAM_ID,
    PROGRAM_NAME,
    QUEUE_LEVEL,
    SESSION_ID,
    SESSION_PROOF,
    SESSION_TOKEN,
    THREAD_ID,
    THREAD_NAME,
)

Schema = dict[str, Any]
_CALL_STATUSES = (400, 401, 403, 413, 415, 429, 500, 502, 503, 504)
_PASSED_STATUSES = (400, 401, 413, 415, 429, 500, 502, 503, 504)
_TEXT: Schema = {"type": "string"}


def _header(name: str, description: str, **schema: Any) -> Any:
    return Field(None, alias=name, description=description, **schema)


class IdentityHeaders(BaseModel):
    """The headers of a call besides its hints, none of which is required."""

    program_id: Id = _header(PROGRAM_ID, "The program")
    session_id: Id = _header(SESSION_ID, "The session; also the program, if none is named")
    session_proof: str = _header(SESSION_PROOF, "The secret of the client that the session belongs to")
    session_token: str = _header(SESSION_TOKEN, "The token of the session, in place of the proof")
    program_name: Id = _header(PROGRAM_NAME, "The program's class")
    thread_id: Id = _header(THREAD_ID, "The branch inside the program")
    thread_name: Id = _header(THREAD_NAME, "The branch's name, such as an agent's")
    call_id: Id = _header(CALL_ID, "This call; the same over retries")
    parents: str = _header(
        PARENT_IDS,
        "The calls that this one depends on, comma separated; `-` for none",
        pattern=r"^[!-+\--~]{1,64}(,[!-+\--~]{1,64})*$",
        max_length=1024,
    )
    flags: Id = _header(FLAGS, "Comma separated")
    final: Literal["true", "false"] = _header(FINAL, "Whether it is the program's last call")
    interceptions: str = _header(
        INTERCEPTIONS,
        "Tools that ran since, in seconds",
        pattern="^[a-z_]{1,32}=[0-9]{1,6}(,[a-z_]{1,32}=[0-9]{1,6})*$",
        max_length=1024,
    )


class CallFields(BaseModel):
    """What the gateway itself reads of a call's body; the engine receives all other fields unchanged."""

    model_config = ConfigDict(extra="allow")

    stream: bool | None = None
    """Whether to stream the answer, where the endpoint streams."""
    vllm_xargs: dict[str, Any] | None = None
    """Forwarded to a vLLM engine; the gateway sets `autellix_*` itself."""


_HINTS: list[Schema] = [
    {
        "name": row.header,
        "in": "header",
        "required": False,
        "description": row.description,
        "schema": row.schema,
    }
    for row in HINT_HEADERS
]
_RECEIPT_HEADERS: Schema = {
    name: {"schema": schema, "required": True, "description": description}
    for name, schema, description in (
        (PROGRAM_ID, ID_SCHEMA, "The program"),
        (CALL_ID, ID_SCHEMA, "The call"),
        (IDENTITY_SOURCE, _TEXT, "What named the program"),
        (ENGINE, _TEXT, "The engine"),
        (QUEUE_LEVEL, _TEXT, "Its queue level; 1 is the best"),
    )
}
_ANSWER: Schema = {
    "type": "object",
    "properties": {"autellix": msgspec.json.schema_components([Receipt])[1]["Receipt"]},
}


def _description(dialect: Dialect) -> dict[str, Any]:
    """Return what FastAPI cannot read off an endpoint's stub."""
    content: Schema = {"application/json": {"schema": _ANSWER if dialect.makes_call else {"type": "object"}}}
    if dialect.stream_ends or dialect.method == "GET":
        content["text/event-stream"] = {}
    headers = {"headers": _RECEIPT_HEADERS} if dialect.makes_call else {}
    statuses = _CALL_STATUSES if dialect.makes_call else _PASSED_STATUSES
    return {
        "methods": [dialect.method],
        "tags": ["calls" if dialect.makes_call else "engine"],
        "summary": dialect.summary,
        "responses": {
            200: {"description": "The engine's answer", "content": content, **headers},
            **refusals(*statuses, shape=dialect.errors),
            "default": {"description": "Any other answer of the engine, unchanged"},
        },
        "openapi_extra": {"parameters": _HINTS} if dialect.makes_call else _passed_parts(dialect),
    }


def _passed_parts(dialect: Dialect) -> Schema:
    names = re.findall(r"{(\w+)", dialect.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    body: Schema = {} if dialect.method == "GET" else {"content": {"application/json": {"schema": {}}}}
    parts: Schema = {"parameters": parameters, "requestBody": body}
    return {name: part for name, part in parts.items() if part}


async def _call(fields: CallFields, headers: Annotated[IdentityHeaders, Header()]) -> None:
    """Describe a call; the gateway answers it without FastAPI."""


async def _passed() -> None:
    """Describe a request that is passed through."""


DESCRIPTION = "Program-aware serving in front of engines. The engine receives all other fields unchanged."
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ANY_KEY: list[Schema] = [{}, {"bearer": []}, {"key": []}]
"""Without tenants no key is needed."""


class AsgiRoute(APIRoute):
    """A described route whose endpoint is an ASGI app: calls need no request or response objects."""

    def __init__(self, dialect: Dialect, app: ASGIApp) -> None:
        super().__init__(dialect.path, _call if dialect.makes_call else _passed, **_description(dialect))
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match like a plain route: the endpoint does not need its route in the scope."""
        return Route.matches(self, scope)


def head_routes(app: FastAPI) -> list[BaseRoute]:
    """Return a route that answers HEAD for each route of an app that answers GET."""
    heads: list[BaseRoute] = []
    for route in app.routes:
        if isinstance(route, APIRoute) and "GET" in route.methods:
            head = copy.copy(route)
            head.methods, head.include_in_schema = {"HEAD"}, False
            heads.append(head)
    return heads


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an app, generated once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=importlib.metadata.version("autellix"),
            description=DESCRIPTION,
            routes=app.routes,
        )
        document["security"] = _ANY_KEY
        document["components"]["securitySchemes"] = _SECURITY_SCHEMES
        errors = TypeAdapter(OpenAIError | AnthropicError).json_schema(ref_template=REF_PREFIX + "{model}")
        document["components"]["schemas"] |= errors["$defs"]
        _drop_validation_errors(document)
        app.openapi_schema = document
    return app.openapi_schema


def _drop_validation_errors(document: dict[str, Any]) -> None:
    """Remove FastAPI's own 422: malformed requests get a 400 with an error object."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
