"""The result of one call of a replay, which is one JSON line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """One call as its client saw it; times are seconds since the start of the run."""

    program: str
    call: int
    thread: str
    submit_s: float
    finish_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """Cached prompt tokens, by the receipt or the usage; None if neither reports them."""
    receipt: Mapping[str, Any] | None = None
    """The backend's receipt, unchanged; None if there was none."""
    error: str | None = None
    submit_step: float | None = None
    """The engine's steps since the start of the run when the call was sent; None without a clock of steps."""
    finish_step: float | None = None
    """The same when it was answered."""

    @property
    def response_s(self) -> float:
        """Time from sending the call to having its answer."""
        return self.finish_s - self.submit_s

    @property
    def has_engine_report(self) -> bool:
        """Whether the receipt comes from an engine report, and is not an estimate."""
        return self.receipt is not None and self.receipt.get("estimated") is not True

    def receipt_number(self, field: str) -> float | None:
        """Return a numeric field of the receipt, or None where it is absent."""
        value = (self.receipt or {}).get(field)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
