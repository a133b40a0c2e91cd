"""Fits program traces to a small engine: scaled lengths, bounded contexts, and a rule for gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace


@dataclass(frozen=True, slots=True)
class GapRule:
    """The rule for a call's wait after its last parent: the recorded gap, at most `cap_s` seconds.

    A cap of zero removes gaps, an infinite one keeps them as recorded. Unknown gaps are zero.
    """

    cap_s: float

    def __post_init__(self) -> None:
        if not self.cap_s >= 0:
            raise ValueError(f"cap_s is {self.cap_s}; expected zero or more seconds")

    def apply(self, gap_s: float | None) -> float:
        """Return the seconds to wait for a recorded gap."""
        return min(gap_s or 0.0, self.cap_s)

    def __str__(self) -> str:
        if self.cap_s == 0:
            return "gaps not played"
        if math.isinf(self.cap_s):
            return "gaps as recorded"
        return f"gaps as recorded, at most {self.cap_s:g} s"


NO_GAPS = GapRule(0.0)
"""Every call starts when its last parent has ended."""
RECORDED_GAPS = GapRule(math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Changes to each program before it is played."""

    length_scale: float = 1.0
    """Factor on the new and the generated tokens of each call."""
    max_context_tokens: int
    """Most tokens of a call's prompt and answer together."""
    gap_rule: GapRule = NO_GAPS

    def __post_init__(self) -> None:
        if not 0 < self.length_scale < math.inf or self.max_context_tokens < 2:
            raise ValueError(
                f"length_scale is {self.length_scale}, max_context_tokens {self.max_context_tokens}; "
                "expected more than zero, and two or more"
            )


def describe_fit(fit: Fit) -> str:
    """Return one line for every result that was measured with fitted programs."""
    scale = "lengths as recorded" if fit.length_scale == 1 else f"lengths x {fit.length_scale:g}"
    return f"{scale}, context at most {fit.max_context_tokens} tokens, {fit.gap_rule}"


def fit_program(
    program: ProgramTrace, *, length_scale: float, max_context_tokens: int, gap_rule: GapRule = NO_GAPS
) -> ProgramTrace:
    """Multiply the new and generated tokens of each call by `length_scale`, within `max_context_tokens`.

    The call graph stays as it is. Every call generates at least one token and adds at least one. A call
    whose history would not fit starts over with its new tokens alone, as chat clients drop old turns. Gaps
    follow the rule.

    Raises:
        ValueError: if the scale is not above zero or the context has no room for two tokens.
    """
    fit = Fit(length_scale=length_scale, max_context_tokens=max_context_tokens, gap_rule=gap_rule)
    return apply_fit(program, fit)


def apply_fit(program: ProgramTrace, fit: Fit) -> ProgramTrace:
    """Return the fitted program."""
    fitted: list[CallTrace] = []
    for call in program.calls:
        fitted.append(_fit_call(call, fitted, fit))
    prefix_tokens = program.system_prefix_tokens
    if prefix_tokens is not None:
        prefix_tokens = min(round(prefix_tokens * fit.length_scale), fitted[0].prefill_tokens)
    return replace(program, calls=tuple(fitted), system_prefix_tokens=prefix_tokens)


def _fit_call(call: CallTrace, earlier: list[CallTrace], fit: Fit) -> CallTrace:
    decode_tokens = min(_scaled(call.decode_tokens, fit.length_scale), fit.max_context_tokens // 2)
    new_tokens = min(_scaled(call.new_tokens, fit.length_scale), fit.max_context_tokens - decode_tokens)
    shared_tokens, prefix_from = 0, call.prefix_from
    if prefix_from is not None:
        wanted_tokens = round(call.shared_prefix_tokens * fit.length_scale)
        shared_tokens = min(wanted_tokens, earlier[prefix_from].context_tokens)
    if shared_tokens + new_tokens + decode_tokens > fit.max_context_tokens:
        shared_tokens, prefix_from = 0, None
    return replace(
        call,
        prefill_tokens=shared_tokens + new_tokens,
        decode_tokens=decode_tokens,
        shared_prefix_tokens=shared_tokens,
        prefix_from=prefix_from,
        gap_before_s=fit.gap_rule.apply(call.gap_before_s),
    )


def _scaled(tokens: int, length_scale: float) -> int:
    return max(1, round(tokens * length_scale))
