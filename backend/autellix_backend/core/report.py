"""The account of a call as the engine sends it to the gateway: one JSON datagram per call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from autellix_backend.core.call import CallRecord
from autellix_backend.core.errors import ReportError

__all__ = ["EngineReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport(CallRecord):
    """A call's record with what the engine knows of it.

    `arrival_s` and `finish_s` are of the engine's clock: elsewhere only their difference means anything.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    arrival_step: int
    """The engine's count of executed steps when the call arrived."""
    finish_step: int
    engine_steps: int
    """The executed steps that this call was part of."""
    finish_reason: str | None
    dropped_records: int = 0
    """How many accounts this engine failed to send so far."""

    @classmethod
    def of(
        cls,
        record: CallRecord,
        *,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int,
        arrival_step: int,
        finish_step: int,
        engine_steps: int,
        finish_reason: str | None,
        dropped_records: int = 0,
    ) -> EngineReport:
        """Complete the scheduler's record of a call with the engine's facts."""
        return cls(
            **asdict(record),
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            arrival_step=arrival_step,
            finish_step=finish_step,
            engine_steps=engine_steps,
            finish_reason=finish_reason,
            dropped_records=dropped_records,
        )

    def to_bytes(self) -> bytes:
        """Return the account as one datagram."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, datagram: bytes) -> EngineReport:
        """Read an account; keys of a later version are ignored.

        Raises:
            ReportError: the datagram is not a JSON object with every field of its type.
        """
        try:
            message = json.loads(datagram)
        except ValueError as error:
            raise ReportError(str(error)) from error
        if not isinstance(message, dict):
            raise ReportError(f"a JSON {type(message).__name__} instead of an object")
        return cls(**{name: _read(message, name, kinds) for name, kinds in _KINDS.items()})


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
}
_KINDS = {field.name: _TYPES[str(field.type)] for field in fields(EngineReport)}


def _read(message: dict[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    if name not in message:
        raise ReportError(f"{name} is missing")
    value = message[name]
    # bool is an int to isinstance, and a number to nobody else.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ReportError(f"{name} is {value!r}")
    return value
