"""Who is calling: the program, thread and call that a request's headers and body name.

The first source that matches wins and is reported: the program header, the session header, vLLM's session
header, vLLM's session field, and for traffic without any of these one program per request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autellix_backend.core.estimate import Hint
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.tenants import Tenant
from autellix_wire import (
    CALL_ID,
    EXPECTED_CALLS,
    EXPECTED_TOKENS,
    FINAL,
    FLAGS,
    INTERCEPTIONS,
    PARENT_IDS,
    PROGRAM_ID,
    PROGRAM_NAME,
    SESSION_ID,
    THREAD_ID,
    InvalidIdError,
    check_id,
    parse_interceptions,
    parse_parents,
)

VLLM_SESSION_HEADER = "X-Session-ID"
VLLM_SESSION_FIELD = "session_id"
MAIN_THREAD = "0"
MAX_EXPECTED_DIGITS = 12

Source = Literal[
    "program-header", "session-header", "x-session-id", "body-session-id", "request", "foreign-token"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one request says about itself; `source` tells where the program's id came from."""

    session: str | None
    program: str
    name: str | None
    thread: str
    call: str
    parents: tuple[str, ...] | None
    flags: tuple[str, ...]
    is_final: bool
    source: Source
    hint: Hint | None = None
    """What the client expects of the program from this call on."""
    interceptions: tuple[tuple[str, float], ...] = ()
    """Tools that the client ran since the calls this one depends on, and their seconds."""

    def under(self, tenant: Tenant) -> Identity:
        """Return the identity with the ids that the backend knows this tenant's program and session by."""
        if not tenant.name:
            return self
        session = None if self.session is None else tenant.scoped(self.session)
        return replace(self, session=session, program=tenant.scoped(self.program))

    @property
    def is_anonymous(self) -> bool:
        """Say whether the program is this one request, because nothing named it that is to be believed."""
        return self.source in ("request", "foreign-token")


def identify(headers: Mapping[str, str], body_session: object, new_id: Callable[[], str]) -> Identity:
    """Read a request's identity; `headers` has lower-case names, `body_session` is the body's session_id.

    Raises:
        InvalidRequestError: if an id is malformed; `param` names its header or field.
    """
    try:
        return _identify(headers, body_session, new_id)
    except InvalidIdError as error:
        raise InvalidRequestError(str(error), param=error.field) from error


def _identify(headers: Mapping[str, str], body_session: object, new_id: Callable[[], str]) -> Identity:
    call = _read(headers, CALL_ID) or new_id()
    session = _read(headers, SESSION_ID)
    program, source = _program(headers, session, body_session, call)
    return Identity(
        session=session,
        program=program,
        name=_read(headers, PROGRAM_NAME),
        thread=_read(headers, THREAD_ID) or MAIN_THREAD,
        call=call,
        parents=parse_parents(headers.get(PARENT_IDS.lower()), PARENT_IDS),
        flags=_flags(headers),
        is_final=_is_final(headers),
        source=source,
        hint=_hint(headers),
        interceptions=parse_interceptions(headers.get(INTERCEPTIONS.lower()), INTERCEPTIONS),
    )


def _program(
    headers: Mapping[str, str], session: str | None, body_session: object, call: str
) -> tuple[str, Source]:
    if program := _read(headers, PROGRAM_ID):
        return program, "program-header"
    if session:
        return session, "session-header"
    if program := _read(headers, VLLM_SESSION_HEADER):
        return program, "x-session-id"
    if body_session is None:
        return call, "request"
    if not isinstance(body_session, str):
        raise InvalidIdError(VLLM_SESSION_FIELD, "is not a string")
    return check_id(body_session, VLLM_SESSION_FIELD), "body-session-id"


def _read(headers: Mapping[str, str], name: str) -> str | None:
    value = headers.get(name.lower())
    return None if value is None else check_id(value, name)


def _flags(headers: Mapping[str, str]) -> tuple[str, ...]:
    value = _read(headers, FLAGS)
    return tuple(flag.strip() for flag in value.split(",")) if value else ()


def _hint(headers: Mapping[str, str]) -> Hint | None:
    calls, tokens = _expected(headers, EXPECTED_CALLS), _expected(headers, EXPECTED_TOKENS)
    return None if calls is None and tokens is None else Hint(calls=calls, tokens=tokens)


def _expected(headers: Mapping[str, str], name: str) -> float | None:
    value = headers.get(name.lower())
    if value is None:
        return None
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= MAX_EXPECTED_DIGITS and int(text)):
        raise InvalidRequestError(f"{name} is {value!r}; expected a whole number above zero", param=name)
    return float(text)


def _is_final(headers: Mapping[str, str]) -> bool:
    value = headers.get(FINAL.lower(), "false").strip().lower()
    if value not in ("true", "false"):
        raise InvalidIdError(FINAL, f"is {value!r}, neither true nor false")
    return value == "true"
