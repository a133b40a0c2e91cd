"""The description of the HTTP API, `/openapi.json`, from the table of dialects and one of our own paths.

It says of requests what the gateway itself checks; what the engine asks of its fields is the engine's to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.gateway.calls.dialects import DIALECTS, Dialect
from autellix_backend.gateway.explain.situation import ProgramState
from autellix_backend.gateway.http import openapi_schemas as schemas
from autellix_backend.gateway.http.engines import ENGINES_PATH
from autellix_backend.gateway.http.events import EVENTS_PATH
from autellix_backend.gateway.http.openapi_schemas import Schema
from autellix_backend.gateway.http.programs import DEFAULT_LIMIT, MAX_LIMIT
from autellix_wire import API_PREFIX, PROGRAMS_PATH, SESSIONS_PATH

OPENAPI_PATH = "/openapi.json"

_JSON = "application/json"
_STREAM = "text/event-stream"
_BODY_STATUSES = (400, 413)
_CALL_STATUSES = (400, 401, 403, 413, 429, 500, 503, 504)
_PASSED_STATUSES = (400, 401, 413, 500, 503, 504)
_STATUS_TEXTS = {
    400: "A malformed body, header or id; `param` names it",
    401: "No known API key, or a session token that is missing or wrong",
    403: "For the operator only",
    404: "There is no such session, program or engine",
    409: "The engine's name is taken, or it is the last engine that takes calls",
    413: "The body is too large",
    429: "A limit is reached; `Retry-After` says when to come back",
    500: "The gateway failed",
    503: "No engine answers, or the gateway ends; the call may be repeated",
    504: "The engine did not answer in time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One path of our own."""

    path: str
    summary: str
    method: str = "GET"
    tag: str = "operators"
    parameters: tuple[Schema, ...] = ()
    body: Schema | None = None
    answers: tuple[tuple[int, Schema | str | None], ...] = ()
    """Status, and the schema of its JSON, or another content type, or nothing."""
    errors: tuple[int, ...] = ()
    is_open: bool = False
    """Whether it asks for no key."""


_SESSION = (schemas.path_id("session_id"),)
_PROGRAM = (schemas.path_id("program_id"),)
_ENGINE = (schemas.plain_path("name"),)
_ONE_SESSION = SESSIONS_PATH + "/{session_id:path}"
_ONE_PROGRAM = PROGRAMS_PATH + "/{program_id:path}"
_LIST_QUERY = (
    schemas.query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
    schemas.query("state", {"type": "string", "enum": [str(state) for state in ProgramState]}),
)
_EVENTS_QUERY = (schemas.query("program", schemas.ID),)

OPERATIONS = (
    _Operation(
        path=SESSIONS_PATH,
        method="POST",
        tag="sessions",
        summary="Start a session, or refresh the one of this id",
        body=schemas.SESSION_START,
        answers=((200, schemas.SESSION_STARTED), (201, schemas.SESSION_STARTED)),
        errors=(*_BODY_STATUSES, 429),
    ),
    _Operation(
        path=_ONE_SESSION + "/heartbeat",
        method="POST",
        tag="sessions",
        summary="Keep a session alive",
        parameters=_SESSION,
        answers=((200, schemas.ANY_OBJECT),),
        errors=(400, 404),
    ),
    _Operation(
        path=_ONE_SESSION + "/watch",
        tag="sessions",
        summary="Stay open as long as the client lives",
        parameters=_SESSION,
        answers=((204, None),),
        errors=(400, 404),
    ),
    _Operation(
        path=_ONE_SESSION,
        method="DELETE",
        tag="sessions",
        summary="End a session and its programs",
        parameters=_SESSION,
        answers=((204, None),),
        errors=(400, 404),
    ),
    _Operation(
        path=_ONE_PROGRAM,
        method="DELETE",
        tag="sessions",
        summary="End a program",
        parameters=_PROGRAM,
        answers=((204, None),),
        errors=(400, 404),
    ),
    _Operation(
        path=PROGRAMS_PATH,
        summary="List programs, those with open calls first",
        parameters=_LIST_QUERY,
        answers=((200, schemas.PROGRAMS),),
        errors=(400,),
    ),
    _Operation(
        path=_ONE_PROGRAM + "/why",
        summary="Explain the state of one program",
        parameters=_PROGRAM,
        answers=((200, schemas.WHY),),
        errors=(404,),
    ),
    _Operation(
        path=_ONE_PROGRAM,
        summary="Show one program with its calls",
        parameters=_PROGRAM,
        answers=((200, schemas.PROGRAM_WITH_CALLS),),
        errors=(404,),
    ),
    _Operation(
        path=EVENTS_PATH,
        summary="Listen to what happens to calls, programs and engines",
        parameters=_EVENTS_QUERY,
        answers=((200, _STREAM),),
        errors=(400, 503),
    ),
    _Operation(
        path=ENGINES_PATH,
        summary="List the engines and their load",
        answers=((200, schemas.ENGINES),),
        errors=(403,),
    ),
    _Operation(
        path=ENGINES_PATH,
        method="POST",
        summary="Send calls to a running engine too",
        body=schemas.ENGINE_JOIN,
        answers=((201, schemas.ONE_ENGINE),),
        errors=(*_BODY_STATUSES, 403, 409),
    ),
    _Operation(
        path=ENGINES_PATH + "/{name}/drain",
        method="POST",
        summary="Send an engine no further calls",
        parameters=_ENGINE,
        answers=((200, schemas.ONE_ENGINE),),
        errors=(403, 404, 409),
    ),
    _Operation(
        path=ENGINES_PATH + "/{name}/undrain",
        method="POST",
        summary="Send a drained engine calls again",
        parameters=_ENGINE,
        answers=((200, schemas.ONE_ENGINE),),
        errors=(403, 404, 409),
    ),
    _Operation(
        path=ENGINES_PATH + "/{name}",
        method="DELETE",
        summary="Part with an engine once its last call has ended",
        parameters=_ENGINE,
        answers=((202, schemas.ONE_ENGINE),),
        errors=(403, 404, 409),
    ),
    _Operation(
        path=API_PREFIX + "/config",
        summary="Show the settings in force, secrets hidden",
        answers=((200, schemas.ANY_OBJECT),),
        errors=(403,),
    ),
    _Operation(
        path="/healthz",
        summary="Say that the gateway runs",
        answers=((200, schemas.STATUS),),
        is_open=True,
    ),
    _Operation(
        path="/readyz",
        summary="Say whether calls can be answered",
        answers=((200, schemas.STATUS),),
        errors=(503,),
        is_open=True,
    ),
    _Operation(
        path="/metrics",
        summary="Show the metrics in Prometheus' text format",
        answers=((200, "text/plain"),),
        errors=(403,),
    ),
    _Operation(path=OPENAPI_PATH, summary="This description", answers=((200, schemas.ANY_OBJECT),)),
)


def openapi_document(version: str) -> Schema:
    """Return the OpenAPI 3.1 document of a gateway of this version."""
    paths: dict[str, dict[str, Schema]] = {}
    for dialect in DIALECTS:
        paths.setdefault(_plain(dialect.path), {})[dialect.method.lower()] = _of_dialect(dialect)
    for operation in OPERATIONS:
        paths.setdefault(_plain(operation.path), {})[operation.method.lower()] = _of_own(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Autellix",
            "version": version,
            "description": "Program-aware serving in front of an engine. Fields that are not described here "
            "go to the engine as they are.",
        },
        "paths": paths,
        "components": {"schemas": schemas.COMPONENTS, "securitySchemes": schemas.SECURITY},
        "security": schemas.ANY_KEY,
    }


def openapi_route(version: str) -> Route:
    """Return the route that answers the document."""
    document = msgspec.json.encode(openapi_document(version))

    async def answer(_request: Request) -> Response:
        return Response(document, media_type=_JSON)

    return Route(OPENAPI_PATH, answer, methods=["GET"])


def _of_dialect(dialect: Dialect) -> Schema:
    statuses = _CALL_STATUSES if dialect.makes_call else _PASSED_STATUSES
    answer: Schema = {_JSON: {"schema": schemas.ANSWER if dialect.makes_call else schemas.ANY_OBJECT}}
    if dialect.stream_ends or dialect.method == "GET":
        answer[_STREAM] = {}
    responses = {
        "200": {"description": "The engine's answer", "content": answer},
        **{str(status): _error(status, schemas.error_ref(dialect.errors)) for status in statuses},
        "default": {"description": "What else the engine answers, as it came"},
    }
    if dialect.makes_call:
        responses["200"]["headers"] = schemas.RECEIPT_HEADERS
    shown: Schema = {
        "tags": ["calls" if dialect.makes_call else "engine"],
        "summary": dialect.summary,
        "operationId": _operation_id(dialect.method, dialect.path),
        "parameters": [
            *(schemas.plain_path(name) for name in re.findall(r"{(\w+)", dialect.path)),
            *(schemas.CALL_HEADERS if dialect.makes_call else ()),
        ],
        "responses": responses,
    }
    if dialect.method == "POST":
        body = schemas.call_body(dialect) if dialect.makes_call else {}
        shown["requestBody"] = {"required": dialect.makes_call, "content": {_JSON: {"schema": body}}}
    return shown


def _of_own(operation: _Operation) -> Schema:
    errors = operation.errors if operation.is_open else (401, *operation.errors)
    responses = {str(status): _answer(answer) for status, answer in operation.answers}
    responses |= {str(status): _error(status, schemas.ERROR_REF) for status in (*errors, 500)}
    shown: Schema = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _operation_id(operation.method, operation.path),
        "parameters": list(operation.parameters),
        "responses": responses,
    }
    if operation.body is not None:
        shown["requestBody"] = {"required": True, "content": {_JSON: {"schema": operation.body}}}
    if operation.is_open:
        shown["security"] = []
    return shown


def _answer(answer: Schema | str | None) -> Schema:
    if answer is None:
        return {"description": "Done"}
    if isinstance(answer, str):
        return {"description": "The answer", "content": {answer: {}}}
    return {"description": "The answer", "content": {_JSON: {"schema": answer}}}


def _error(status: int, schema: Schema) -> Schema:
    return {"description": _STATUS_TEXTS[status], "content": {_JSON: {"schema": schema}}}


def _plain(path: str) -> str:
    """Return a route's path without its converters, which OpenAPI does not know."""
    return path.replace(":path}", "}")


def _operation_id(method: str, path: str) -> str:
    words: list[Any] = re.findall(r"\w+", _plain(path))
    return "_".join([method.lower(), *words])
