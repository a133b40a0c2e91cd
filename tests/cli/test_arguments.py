"""Values of options that several commands take."""

from __future__ import annotations

import argparse

import pytest

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.cli.arguments import gap_rule
from autellix_lab.workload.fit import NO_GAPS, RECORDED_GAPS, GapRule


def test_values_have_their_types() -> None:
    """Each in its type."""
    assert (count("3"), above_zero("0.5")) == (3, 0.5)
    assert [gap_rule(text) for text in ("zero", "recorded", "capped:2")] == [
        NO_GAPS,
        RECORDED_GAPS,
        GapRule(2.0),
    ]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_count_is_above_zero(text: str) -> None:
    """The message repeats the value."""
    with pytest.raises(argparse.ArgumentTypeError, match=f"is {text!r}; expected a whole number above zero"):
        count(text)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "much", ""])
def test_a_number_is_finite_and_above_zero(text: str) -> None:
    """Infinity and text are refused too."""
    with pytest.raises(argparse.ArgumentTypeError, match=f"is {text!r}; expected a number above zero"):
        above_zero(text)


@pytest.mark.parametrize("text", ["", "soon", "capped:", "capped:-1", "zero:1"])
def test_a_gap_rule_is_one_of_three(text: str) -> None:
    """The message names them."""
    with pytest.raises(argparse.ArgumentTypeError, match="expected zero, recorded or capped:SECONDS"):
        gap_rule(text)
