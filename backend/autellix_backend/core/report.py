"""The report of a call that the engine sends to the gateway: one JSON datagram per call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from autellix_backend.core.call import CallRecord
from autellix_backend.core.datagram import fields_of, kinds_of, read_object
from autellix_backend.core.errors import ReportError

__all__ = ["EngineReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport(CallRecord):
    """A call's record with the engine's facts.

    `arrival_s` and `finish_s` are on the engine's clock: elsewhere only their difference means anything.
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
    """Reports that this engine has failed to send so far."""

    def to_bytes(self) -> bytes:
        """Return the report as one datagram."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, datagram: bytes) -> EngineReport:
        """Read a report; keys of a later version are ignored.

        Raises:
            ReportError: the datagram is not a JSON object with every field of its type.
        """
        return cls(**fields_of(read_object(datagram, ReportError), _KINDS, ReportError))


_KINDS = kinds_of(EngineReport)
