"""The schemas of the HTTP API's description: ids, headers, bodies, answers and errors."""

from __future__ import annotations

from typing import Any

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.errors import ErrorShape
from autellix_backend.settings import ENGINE_KINDS
from autellix_wire import (
    CALL_ID,
    ENGINE,
    EXPECTED_CALLS,
    EXPECTED_TOKENS,
    FINAL,
    FLAGS,
    IDENTITY_SOURCE,
    INTERCEPTIONS,
    MAX_ID_BYTES,
    PARENT_IDS,
    PROGRAM_ID,
    PROGRAM_NAME,
    QUEUE_LEVEL,
    SESSION_ID,
    SESSION_TOKEN,
    THREAD_ID,
)

Schema = dict[str, Any]

ANY_OBJECT: Schema = {"type": "object"}
ID: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ID_BYTES,
    "pattern": "^[!-~]([ -~]*[!-~])?$",
    "description": "Printable ASCII",
}
_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_NUMBER: Schema = {"type": "number"}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}


def record(required: dict[str, Schema], **optional: Schema) -> Schema:
    """Return the schema of an object; fields beside the named ones are allowed."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def listed(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def query(name: str, schema: Schema) -> Schema:
    """Return a parameter of the query."""
    return {"name": name, "in": "query", "schema": schema}


def path_id(name: str) -> Schema:
    """Return an id in a path."""
    return {"name": name, "in": "path", "required": True, "schema": ID}


def plain_path(name: str) -> Schema:
    """Return a part of a path that the engine reads."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _header(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "header", "schema": schema, "description": description}


def _listed_text(item: str) -> Schema:
    return {"type": "string", "pattern": f"^{item}(,{item})*$", "maxLength": 1024}


_LISTED_ID = "[!-+\\--~]{1,64}"
_WHOLE: Schema = {"type": "string", "pattern": "^0{0,3}[1-9][0-9]{0,8}$"}

CALL_HEADERS: tuple[Schema, ...] = (
    _header(PROGRAM_ID, ID, "The program"),
    _header(SESSION_ID, ID, "The session; the program too, if none is named"),
    _header(SESSION_TOKEN, {"type": "string"}, "What proves that the session is the client's"),
    _header(PROGRAM_NAME, ID, "The program's class"),
    _header(THREAD_ID, ID, "The branch inside the program"),
    _header(CALL_ID, ID, "This call; the same over retries"),
    _header(PARENT_IDS, _listed_text(_LISTED_ID), "The calls that this one depends on; `-` for none"),
    _header(FLAGS, ID, "Comma separated"),
    _header(FINAL, {"type": "string", "enum": ["true", "false"]}, "Whether it is the program's last call"),
    _header(INTERCEPTIONS, _listed_text("[a-z_]{1,32}=[0-9]{1,6}"), "Tools that ran since, in seconds"),
    _header(EXPECTED_CALLS, _WHOLE, "Calls that the program is expected to make from here on"),
    _header(EXPECTED_TOKENS, _WHOLE, "Tokens that it is expected to take"),
)
RECEIPT_HEADERS: Schema = {
    PROGRAM_ID: {"schema": ID, "required": True, "description": "The program"},
    CALL_ID: {"schema": ID, "required": True, "description": "The call"},
    IDENTITY_SOURCE: {"schema": _TEXT, "required": True, "description": "What named the program"},
    ENGINE: {"schema": _TEXT, "required": True, "description": "The engine"},
    QUEUE_LEVEL: {"schema": _TEXT, "required": True, "description": "The level in its queues; 1 is the best"},
}

_RECEIPT = record(
    {
        "call_id": ID,
        "program_id": ID,
        "wait_s": _NUMBER,
        "service_s": _NUMBER,
        "estimated": _BOOLEAN,
    },
    **dict.fromkeys(("preemptions", "demotions", "promotions", "level", "cached_tokens"), _MAYBE_COUNT),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "engine_steps"), _MAYBE_COUNT),
)
_PROGRAM_FIELDS: dict[str, Schema] = {
    "program_id": ID,
    "name": _MAYBE_TEXT,
    "state": _TEXT,
    "session_ids": listed(ID),
    "engines": listed(_TEXT),
    "threads": _COUNT,
    "active_calls": _COUNT,
    "finished_calls": _COUNT,
    "level": _MAYBE_COUNT,
    "service_s": _NUMBER,
    "wait_s": _NUMBER,
    "ratio": _MAYBE_NUMBER,
    "age_s": _NUMBER,
    "idle_s": _NUMBER,
}
_CALL = record(
    {"call_id": ID, "thread_id": ID, "parents": listed(ID), "state": _TEXT, "start_s": _NUMBER},
    finish_s=_MAYBE_NUMBER,
    outcome=_MAYBE_TEXT,
    service_s=_MAYBE_NUMBER,
    wait_s=_MAYBE_NUMBER,
)
_ENGINE_FIELDS: dict[str, Schema] = {
    "name": _TEXT,
    "base_url": _TEXT,
    "is_alive": _BOOLEAN,
    "state": _TEXT,
    "failure": _MAYBE_TEXT,
    "restarts": _COUNT,
}

PROGRAMS = record({"programs": listed(record(_PROGRAM_FIELDS)), "has_more": _BOOLEAN})
PROGRAM_WITH_CALLS = record({**_PROGRAM_FIELDS, "longest_chain_s": _NUMBER, "calls": listed(_CALL)})
WHY = record({"program_id": ID, "state": _TEXT, "policy": _TEXT, "text": _TEXT, "calls": listed(ANY_OBJECT)})
ONE_ENGINE = record(_ENGINE_FIELDS)
ENGINES = record({"engines": listed(ONE_ENGINE)})
ENGINE_JOIN = record({"url": _TEXT}, name=_TEXT, kind={"type": "string", "enum": list(ENGINE_KINDS)})
STATUS = record({"status": _TEXT}, reason=_TEXT)
SESSION_START = record({"session_id": ID}, program_name=_MAYBE_TEXT, client=_MAYBE_TEXT)
SESSION_STARTED = record(
    {"session_id": ID, "heartbeat_s": _NUMBER, "server": _TEXT, "version": _TEXT, "token": _TEXT}
)
ANSWER = record({}, autellix={"$ref": "#/components/schemas/Receipt"})

COMPONENTS: Schema = {
    "Error": record(
        {"error": record({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT})},
    ),
    "AnthropicError": record(
        {"type": {"const": "error"}, "error": record({"type": _TEXT, "message": _TEXT})}
    ),
    "Receipt": _RECEIPT,
}
SECURITY: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ANY_KEY: list[Schema] = [{}, {"bearer": []}, {"key": []}]
"""A gateway without tenants asks for none."""

ERROR_REF: Schema = {"$ref": "#/components/schemas/Error"}


def error_ref(shape: ErrorShape) -> Schema:
    """Return the schema of errors in a shape."""
    return {"$ref": "#/components/schemas/AnthropicError"} if shape is ErrorShape.ANTHROPIC else ERROR_REF


def call_body(dialect: Dialect) -> Schema:
    """Return what the gateway itself reads of a call's body; anything else is the engine's."""
    read: Schema = {
        "vllm_xargs": {
            "type": ["object", "null"],
            "description": "Goes on to a vLLM engine; `autellix_*` in it are the gateway's own",
        }
    }
    if dialect.stream_ends:
        read["stream"] = {"type": ["boolean", "null"], "description": "Whether to stream the answer"}
    if dialect.output_field is not None:
        read[dialect.output_field] = {
            "type": ["integer", "null"],
            "description": "At most `limits.max_output_tokens`, which is put in where it is missing",
        }
    return {"type": "object", "properties": read}
