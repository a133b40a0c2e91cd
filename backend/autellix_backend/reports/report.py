"""The report of a call that the engine sends to the gateway: one JSON datagram per call."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from autellix_backend.core.call import CallRecord
from autellix_backend.reports.errors import ReportError

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
    runs: tuple[tuple[float, float], ...] = ()
    """When it got a slot and when it lost it, in seconds from its arrival; the last ones of many are one."""
    prefilled_s: float | None = None
    """When its first prefill ended, in seconds from its arrival; None if it did not."""

    def to_bytes(self) -> bytes:
        """Return the report as one datagram."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, datagram: bytes) -> EngineReport:
        """Read a report; keys of a later version are ignored.

        Raises:
            ReportError: the datagram is not a JSON object with every field of its type.
        """
        try:
            return _decoder.decode(datagram)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ReportError(f"not an engine report: {error}") from error


_decoder = msgspec.json.Decoder(EngineReport)
