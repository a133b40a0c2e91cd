"""Stretches of steps, of equal or of growing duration."""

from __future__ import annotations

import pytest

from autellix_lab.sim.stretch import Stretch

STRETCHES = [
    Stretch(10.0, 0.25, 8),
    Stretch(10.0, 0.25, 8, delay_s=3.0),
    Stretch(10.0, 0.25, 8, growth_s=0.125),
    Stretch(10.0, 0.0123, 50_000, growth_s=1e-7, delay_s=0.1),
    Stretch(10.0, 0.001, 50_000, growth_s=0.001),
]


@pytest.mark.parametrize("stretch", STRETCHES, ids=str)
def test_a_stretch_takes_its_steps_one_after_the_other(stretch: Stretch) -> None:
    steps_s = sum(stretch.step_s + step * stretch.growth_s for step in range(stretch.steps))
    assert stretch.steps_s == pytest.approx(steps_s)
    assert stretch.mean_step_s * stretch.steps == pytest.approx(steps_s)
    assert stretch.end_s == pytest.approx(stretch.start_s + stretch.delay_s + steps_s)


@pytest.mark.parametrize("stretch", STRETCHES, ids=str)
def test_a_moment_belongs_to_the_step_that_it_lies_in(stretch: Stretch) -> None:
    """The end of a step belongs to it, however its sum was rounded."""
    ends_s = [stretch.start_s + stretch.delay_s]
    for step in range(stretch.steps):
        ends_s.append(ends_s[-1] + stretch.step_s + step * stretch.growth_s)
    for number in {1, 2, 3, 7, stretch.steps // 2, stretch.steps}:
        middle_s = (ends_s[number - 1] + ends_s[number]) / 2
        cut = Stretch(stretch.start_s, stretch.step_s, number, stretch.growth_s, stretch.delay_s)
        assert stretch.steps_by(middle_s) == number
        assert stretch.steps_by(cut.end_s) == number


@pytest.mark.parametrize("stretch", STRETCHES, ids=str)
def test_the_first_step_always_completes(stretch: Stretch) -> None:
    assert stretch.steps_by(stretch.start_s) == stretch.steps_by(stretch.start_s - 1.0) == 1
