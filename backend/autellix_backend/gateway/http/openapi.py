"""The OpenAPI document, which FastAPI generates from the routes, and what this module adds to it.

Of the engine's endpoints it describes what the gateway itself reads and adds; the engine checks the other
fields of a request.
"""

from __future__ import annotations

import copy
import importlib.metadata
import re
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.constants import REF_PREFIX
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.http.bodies import ID_SCHEMA
from autellix_backend.gateway.http.refusals import AnthropicError, OpenAIError, refusals
from autellix_backend.reports.receipt import Receipt
from autellix_wire.headers import (
    CALL_ID,
    ENGINE,
    EXPECTED_CALLS,
    EXPECTED_TOKENS,
    FINAL,
    FLAGS,
    IDENTITY_SOURCE,
    INTERCEPTIONS,
    PARENT_IDS,
    PROGRAM_ID,
    PROGRAM_NAME,
    QUEUE_LEVEL,
    SESSION_ID,
    SESSION_TOKEN,
    THREAD_ID,
)

Schema = dict[str, Any]
_CALL_STATUSES = (400, 401, 403, 413, 429, 500, 502, 503, 504)
_PASSED_STATUSES = (400, 401, 413, 429, 500, 502, 503, 504)
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "string", "pattern": "^0{0,3}[1-9][0-9]{0,8}$"}


def _listed(item: str) -> Schema:
    return {"type": "string", "pattern": f"^{item}(,{item})*$", "maxLength": 1024}


_HEADERS: tuple[tuple[str, Schema, str], ...] = (
    (PROGRAM_ID, ID_SCHEMA, "The program"),
    (SESSION_ID, ID_SCHEMA, "The session; also the program, if none is named"),
    (SESSION_TOKEN, _TEXT, "The proof that the session is the client's"),
    (PROGRAM_NAME, ID_SCHEMA, "The program's class"),
    (THREAD_ID, ID_SCHEMA, "The branch inside the program"),
    (CALL_ID, ID_SCHEMA, "This call; the same over retries"),
    (PARENT_IDS, _listed("[!-+\\--~]{1,64}"), "The calls that this one depends on; `-` for none"),
    (FLAGS, ID_SCHEMA, "Comma separated"),
    (FINAL, {"type": "string", "enum": ["true", "false"]}, "Whether it is the program's last call"),
    (INTERCEPTIONS, _listed("[a-z_]{1,32}=[0-9]{1,6}"), "Tools that ran since, in seconds"),
    (EXPECTED_CALLS, _COUNT, "Calls that the program is expected to make from here on"),
    (EXPECTED_TOKENS, _COUNT, "Tokens that it is expected to take"),
)
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


def describe_route(dialect: Dialect) -> dict[str, Any]:
    """Return the arguments that describe an endpoint's route to FastAPI."""
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
        "openapi_extra": _request(dialect),
    }


def _request(dialect: Dialect) -> Schema:
    path_names = re.findall(r"{(\w+)", dialect.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in path_names
    ]
    if dialect.makes_call:
        parameters += [
            {"name": name, "in": "header", "schema": schema, "description": description}
            for name, schema, description in _HEADERS
        ]
    if dialect.method != "POST":
        return {"parameters": parameters}
    content = {"application/json": {"schema": _call_body(dialect) if dialect.makes_call else {}}}
    return {
        "parameters": parameters,
        "requestBody": {"required": dialect.makes_call, "content": content},
    }


def _call_body(dialect: Dialect) -> Schema:
    """Return what the gateway itself reads of a call's body."""
    fields: Schema = {
        "vllm_xargs": {
            "type": ["object", "null"],
            "description": "Forwarded to a vLLM engine; the gateway sets `autellix_*` itself",
        }
    }
    if dialect.stream_ends:
        fields["stream"] = {"type": ["boolean", "null"], "description": "Whether to stream the answer"}
    if dialect.output_fields:
        fields[dialect.output_fields[0]] = {
            "type": ["integer", "null"],
            "description": "Times answers at most `limits.max_output_tokens`, which is also its default",
        }
    return {"type": "object", "properties": fields}


DESCRIPTION = "Program-aware serving in front of engines. The engine receives all other fields unchanged."
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ANY_KEY: list[Schema] = [{}, {"bearer": []}, {"key": []}]
"""Without tenants no key is needed."""


class AsgiRoute(APIRoute):
    """A described route whose endpoint is an ASGI app: calls need no request or response objects."""

    def __init__(self, path: str, app: ASGIApp, **description: Any) -> None:
        super().__init__(path, _undescribed, **description)
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match like a plain route: the endpoint does not need its route in the scope."""
        return Route.matches(self, scope)


async def _undescribed() -> None:
    """Stand in for an endpoint that FastAPI does not call."""


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
