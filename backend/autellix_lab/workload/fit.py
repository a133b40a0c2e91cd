"""Fits program traces to a small engine: scaled lengths, bounded contexts, and a rule for gaps."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import CallTrace, ProgramTrace


@dataclass(frozen=True, slots=True)
class GapRule:
    """The rule for a call's wait after its last parent: `factor` times the recorded gap, at most `cap_s` s.

    A cap of zero removes gaps, an infinite one keeps them all. Unknown gaps are zero. With the scale of the
    lengths as its factor, tools and persons stay in proportion to the answers.
    """

    cap_s: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.cap_s >= 0:
            raise ValueError(f"cap_s is {self.cap_s}; expected zero or more seconds")
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor is {self.factor}; expected more than zero")

    def apply(self, gap_s: float | None) -> float:
        """Return the seconds to wait for a recorded gap."""
        return min(self.factor * (gap_s or 0.0), self.cap_s)

    def __str__(self) -> str:
        if self.cap_s == 0:
            return "gaps not played"
        scale = "" if self.factor == 1 else f" x {self.factor:g}"
        return f"gaps as recorded{scale}" + ("" if math.isinf(self.cap_s) else f", at most {self.cap_s:g} s")


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


def draw_gaps(program: ProgramTrace, distribution: HeavyTail) -> ProgramTrace:
    """Return the program with a drawn gap (ms) before each call with a parent, for sources that record none.

    The same program gets the same gaps.
    """
    rng = random.Random(f"gaps:{program.source}:{program.program_id}")
    calls = [
        replace(call, gap_before_s=distribution.draw(rng) / 1000) if call.parents else call
        for call in program.calls
    ]
    return replace(program, calls=tuple(calls))


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
