"""The wire protocol between the client, the gateway and the engine plugin: names, ids and bodies."""

from __future__ import annotations

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
    VERSION,
)
from autellix_wire.ids import (
    MAX_ID_BYTES,
    MAX_PARENTS,
    InvalidIdError,
    check_id,
    format_interceptions,
    format_parents,
    parse_interceptions,
    parse_parents,
)
from autellix_wire.paths import API_PREFIX, PROGRAMS_PATH, SESSIONS_PATH

__all__ = [
    "API_PREFIX",
    "CALL_ID",
    "ENGINE",
    "EXPECTED_CALLS",
    "EXPECTED_TOKENS",
    "FINAL",
    "FLAGS",
    "IDENTITY_SOURCE",
    "INTERCEPTIONS",
    "MAX_ID_BYTES",
    "MAX_PARENTS",
    "PARENT_IDS",
    "PROGRAMS_PATH",
    "PROGRAM_ID",
    "PROGRAM_NAME",
    "QUEUE_LEVEL",
    "SESSIONS_PATH",
    "SESSION_ID",
    "SESSION_TOKEN",
    "THREAD_ID",
    "VERSION",
    "InvalidIdError",
    "check_id",
    "format_interceptions",
    "format_parents",
    "parse_interceptions",
    "parse_parents",
]
