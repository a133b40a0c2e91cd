"""The report of a call that the engine sends to the gateway: one JSON message per call."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import msgspec

from autellix_backend.core.call import CallRecord
from autellix_backend.reports.decoding import ReportError, decode

MAX_S = 1e9
"""The longest time accepted: times are added up and compared, and kept in the shared table."""
MAX_COUNT = 2**53
_ROUNDING_S = 1e-3
"""How far below zero a difference of times may be (s)."""
_TIMES = ("wait_s", "table_wait_s", "service_s", "inherited_service_s", "inactive_s", "prefilled_s")
_COUNTS = (
    *("level", "preemptions", "demotions", "promotions", "prompt_tokens", "output_tokens", "cached_tokens"),
    *("arrival_step", "finish_step", "engine_steps", "dropped_records"),
)
_times_of = attrgetter(*_TIMES)
_counts_of = attrgetter(*_COUNTS)


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
        for name, seconds in zip(_TIMES, _times_of(self), strict=True):
            if seconds is not None and not _is_time(seconds):
                raise ReportError(f"not an engine report: {name} is {seconds}")
        for name, count in zip(_COUNTS, _counts_of(self), strict=True):
            if not 0 <= count <= MAX_COUNT:
                raise ReportError(f"not an engine report: {name} is {count}")
        if not all(_is_time(start) and _is_time(end) for start, end in self.runs):
            raise ReportError("not an engine report: a run's times are out of bounds")


def _is_time(seconds: float) -> bool:
    return -_ROUNDING_S <= seconds <= MAX_S


_decoder = msgspec.json.Decoder(EngineReport)
