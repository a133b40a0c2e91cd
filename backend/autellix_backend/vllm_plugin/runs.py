"""When a call held a slot, and when its prompt was done: for a picture of its program."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_RUNS = 16
"""Runs of a call that are kept apart: its report has to be small."""
_DIGITS = 4


@dataclass(slots=True, kw_only=True)
class CallRuns:
    """The runs of one call, from its arrival on; times are the engine's."""

    arrival_s: float
    started_s: float | None = None
    """When it got its slot; None while it waits."""
    prefilled_s: float | None = None
    """When the last prefill step before its first decode step ended, in seconds from its arrival."""
    has_decoded: bool = False
    is_decoding: bool = False
    """Whether its last step decoded."""
    ended: list[tuple[float, float]] = field(default_factory=list)

    def start(self, now: float) -> None:
        """Note that the call got a slot."""
        self.started_s = now

    def stop(self, now: float) -> None:
        """Note that the call has no slot any more; the run above the bound becomes one with the last."""
        if self.started_s is None:
            return
        start_s, self.started_s = self._offset_s(self.started_s), None
        if len(self.ended) == MAX_RUNS:
            start_s, _ = self.ended.pop()
        self.ended.append((start_s, self._offset_s(now)))

    def prefill(self, now: float) -> None:
        """Note a step that prefilled some of its context."""
        self.is_decoding = False
        if not self.has_decoded:
            self.prefilled_s = self._offset_s(now)

    def decode(self) -> None:
        """Note that it decodes."""
        self.is_decoding = self.has_decoded = True

    def _offset_s(self, now: float) -> float:
        return round(now - self.arrival_s, _DIGITS)
