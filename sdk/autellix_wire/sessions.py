"""Encodes and decodes the JSON bodies of the sessions API."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

SERVER = "autellix"
MAX_HEARTBEAT_S = 3600.0


class InvalidBodyError(ValueError):
    """A body of the sessions API that breaks the protocol."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"sessions API body: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """The request that starts a session; the client makes the id, so no call waits for the answer."""

    session_id: str
    client: str | None = None
    proof: str | None = None
    """A secret of the client: a start that repeats it is the same client's, and returns the token again."""

    def to_bytes(self) -> bytes:
        """Encode the body."""
        return _encoded(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """The answer, which also proves that the server is Autellix."""

    session_id: str
    heartbeat_s: float
    version: str
    token: str | None = None
    """The session token, which the session's calls send to prove that their ids are the client's own."""

    def to_bytes(self) -> bytes:
        """Encode the body."""
        return _encoded({**asdict(self), "server": SERVER})

    @classmethod
    def from_bytes(cls, body: bytes) -> SessionStarted:
        """Decode an answer.

        Raises:
            InvalidBodyError: if the answer is not from an Autellix backend, or is malformed.
        """
        fields = _object(body)
        if fields.get("server") != SERVER:
            raise InvalidBodyError(f"the server is not {SERVER}")
        heartbeat_s = fields.get("heartbeat_s")
        if isinstance(heartbeat_s, bool) or not isinstance(heartbeat_s, int | float) or not heartbeat_s > 0:
            raise InvalidBodyError("heartbeat_s is not a positive number")
        return cls(
            session_id=_text(fields, "session_id") or "",
            heartbeat_s=float(min(heartbeat_s, MAX_HEARTBEAT_S)),
            version=_text(fields, "version") or "",
            token=_text(fields, "token"),
        )


def _encoded(fields: dict[str, object]) -> bytes:
    """Return a body without the fields that are None."""
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def _object(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidBodyError("is not JSON") from error
    if not isinstance(fields, dict):
        raise InvalidBodyError("is not a JSON object")
    return fields


def _text(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidBodyError(f"{name} is not text")
    return value
