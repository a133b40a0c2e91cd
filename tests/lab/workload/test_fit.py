"""Fitting programs to a small engine: lengths, contexts, gaps, and the line that says so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autellix_lab.workload.fit import (
    NO_GAPS,
    RECORDED_GAPS,
    Fit,
    GapRule,
    apply_fit,
    describe_fit,
    draw_gaps,
    fit_program,
)
from autellix_lab.workload.generate import WORKLOADS, generate_programs
from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import CallTrace, ProgramTrace

PROGRAM = ProgramTrace(
    source="s",
    program_id="p",
    calls=(
        CallTrace(id=0, parents=(), thread="main", prefill_tokens=100, decode_tokens=20),
        CallTrace(
            id=1,
            parents=(0,),
            thread="main",
            prefill_tokens=150,
            decode_tokens=1,
            shared_prefix_tokens=120,
            prefix_from=0,
            gap_before_s=7.5,
        ),
    ),
)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_fitted_program_keeps_its_graph_within_the_context(workload: str) -> None:
    for program in generate_programs(workload, 40, seed=2):
        fitted = fit_program(program, length_scale=1 / 8, max_context_tokens=512)
        assert [call.parents for call in program.calls] == [call.parents for call in fitted.calls]
        assert all(call.context_tokens <= 512 and call.decode_tokens >= 1 for call in fitted.calls)


def test_lengths_are_scaled() -> None:
    """New and generated tokens are multiplied, and no call loses its last token."""
    first, second = fit_program(PROGRAM, length_scale=0.1, max_context_tokens=512).calls

    assert (first.prefill_tokens, first.decode_tokens) == (10, 2)
    assert (second.prefill_tokens, second.decode_tokens, second.shared_prefix_tokens) == (15, 1, 12)


def test_a_history_that_does_not_fit_starts_over() -> None:
    """The call keeps its new tokens and shares nothing."""
    second = fit_program(PROGRAM, length_scale=1, max_context_tokens=140).calls[1]

    assert (second.prefill_tokens, second.shared_prefix_tokens, second.prefix_from) == (30, 0, None)


@pytest.mark.parametrize(
    ("rule", "played"), [(NO_GAPS, 0.0), (RECORDED_GAPS, 7.5), (GapRule(5), 5.0), (GapRule(8), 7.5)]
)
def test_gaps_follow_the_rule(rule: GapRule, played: float) -> None:
    """An unknown gap plays as zero under every rule."""
    first, second = apply_fit(PROGRAM, Fit(max_context_tokens=512, gap_rule=rule)).calls

    assert (first.gap_before_s, second.gap_before_s) == (0.0, played)


@pytest.mark.parametrize("cap_s", [-1.0, math.nan])
def test_a_gap_rule_rejects_a_cap_below_zero(cap_s: float) -> None:
    """The message says what was expected."""
    with pytest.raises(ValueError, match="expected zero or more seconds"):
        GapRule(cap_s)


@pytest.mark.parametrize(("length_scale", "context"), [(0, 512), (math.inf, 512), (1, 1)])
def test_an_impossible_fit_is_rejected(length_scale: float, context: int) -> None:
    """Both numbers are named."""
    with pytest.raises(ValueError, match=f"length_scale is {length_scale}, max_context_tokens {context}"):
        fit_program(PROGRAM, length_scale=length_scale, max_context_tokens=context)


@pytest.mark.parametrize(
    ("fit", "note"),
    [
        (
            Fit(length_scale=0.25, max_context_tokens=2048),
            "lengths x 0.25, context at most 2048 tokens, gaps not played",
        ),
        (
            Fit(max_context_tokens=8192, gap_rule=GapRule(5)),
            "lengths as recorded, context at most 8192 tokens, gaps as recorded, at most 5 s",
        ),
        (
            Fit(max_context_tokens=8192, gap_rule=RECORDED_GAPS),
            "lengths as recorded, context at most 8192 tokens, gaps as recorded",
        ),
    ],
)
def test_a_fit_describes_itself(fit: Fit, note: str) -> None:
    """Scale, context and gap rule, in one line."""
    assert note == describe_fit(fit)


def test_gaps_can_keep_their_proportion_to_the_lengths() -> None:
    fitted = fit_program(PROGRAM, length_scale=0.1, max_context_tokens=512, gap_rule=GapRule(math.inf, 0.1))
    assert fitted.calls[1].gap_before_s == pytest.approx(0.75)
    assert str(GapRule(0.5, 0.1)) == "gaps as recorded x 0.1, at most 0.5 s"
    assert GapRule(0.5, 0.1).apply(7.5) == 0.5


def test_a_factor_of_gaps_is_above_zero() -> None:
    with pytest.raises(ValueError, match="factor is 0"):
        GapRule(1.0, 0.0)


def test_drawn_gaps_depend_on_the_program_alone() -> None:
    """A root has none, and the mean is that of the distribution."""
    distribution = HeavyTail(mean=2_000, maximum=60_000, sigma=1.0)
    calls = tuple(
        replace(PROGRAM.calls[min(index, 1)], id=index, parents=(index - 1,) if index else ())
        for index in range(2000)
    )
    program = replace(PROGRAM, calls=calls)
    drawn = draw_gaps(program, distribution)

    assert (
        drawn == draw_gaps(program, distribution) != draw_gaps(replace(program, program_id="q"), distribution)
    )
    assert drawn.calls[0].gap_before_s is None
    gaps_s = [call.gap_before_s or 0.0 for call in drawn.calls[1:]]
    assert min(gaps_s) > 0 and max(gaps_s) <= 60
    assert sum(gaps_s) / len(gaps_s) == pytest.approx(2.0, rel=0.1)
