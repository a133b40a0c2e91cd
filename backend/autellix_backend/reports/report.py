"""The report of a call that the engine sends to the gateway: one JSON message per call."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from autellix_backend.core.call import CallRecord
from autellix_backend.reports.decoding import ReportError, decode

MAX_S = 1e9
"""The longest time accepted: times are added up and compared, and kept in the shared table."""
MAX_COUNT = 2**53
_ROUNDING_S = 1e-3
"""How far below zero a difference of times may be (s)."""


class EngineReport(CallRecord, frozen=True, kw_only=True, gc=False):
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
    """When it got a slot and when it lost it, in seconds from its arrival; of many, the last ones are one."""
    prefilled_s: float | None = None
    """When its first prefill ended, in seconds from its arrival; None if it did not."""

    def to_bytes(self) -> bytes:
        """Return the report as one message."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, message: bytes) -> EngineReport:
        """Read a report; keys of a later version are ignored.

        Raises:
            ReportError: the message is not a JSON object with every field of its type, or a number is
                below zero or beyond reason.
        """
        report = decode(_decoder, message, "an engine report")
        report._check()
        return report

    def _check(self) -> None:
        numbers = list(zip(_NUMBERS, _numbers_of(self), strict=True))
        numbers += [("runs", time_s) for run in self.runs for time_s in run]
        for name, value in numbers:
            limit = MAX_COUNT if name in _COUNTS else MAX_S
            if value is not None and not -_ROUNDING_S <= value <= limit:
                raise ReportError(f"not an engine report: {name} is {value}")


_FIELDS = msgspec.structs.fields(EngineReport)
_COUNTS = {field.name for field in _FIELDS if field.type is int}
_NUMBERS = [field.name for field in _FIELDS if field.type in (int, float, float | None)]
_numbers_of = attrgetter(*_NUMBERS)
_decoder = msgspec.json.Decoder(EngineReport)
