"""Expected remainders: the Gittins index, hints, and the history of a class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.estimate import (
    HISTORY_PROGRAMS,
    LEAST_PROGRAMS,
    MAX_CLASSES,
    SizeEstimator,
    gittins_index,
)
from autellix_backend.core.hints import Hints


def test_a_likely_early_end_lowers_a_programs_index() -> None:
    # Nine of ten end after 1: to spend 1 on each costs 10 and finishes 9.
    assert gittins_index([1.0] * 9 + [100.0], 0.0) == pytest.approx(10 / 9)
    # One that did not end then is as large as the one that remains.
    assert gittins_index([1.0] * 9 + [100.0], 1.0) == 99.0


@given(st.lists(st.floats(0.01, 1e3), min_size=1).map(sorted), st.floats(0, 1e3))
def test_the_index_is_that_of_the_best_stopping_time(totals: list[float], attained: float) -> None:
    larger = [total - attained for total in totals if total > attained]
    if not larger:
        assert gittins_index(totals, attained) is None
        return
    ratios = [
        sum(min(remainder, stop) for remainder in larger) / sum(remainder <= stop for remainder in larger)
        for stop in larger
    ]
    assert gittins_index(totals, attained) == pytest.approx(min(ratios))


def test_a_class_has_an_estimate_after_enough_programs() -> None:
    estimator = SizeEstimator()
    for _ in range(LEAST_PROGRAMS - 1):
        estimator.observe_program("", "chat", 4.0)
    assert estimator.expect("", "chat", 1.0) is None

    estimator.observe_program("", "chat", 4.0)

    assert estimator.expect("", "chat", 1.0) == 3.0
    assert estimator.expect("", "tree", 1.0) is None


def test_classes_are_bounded() -> None:
    estimator = SizeEstimator()
    for _ in range(LEAST_PROGRAMS):
        estimator.observe_program("", "kept", 4.0)
        estimator.observe_program("", "forgotten", 4.0)
    for number in range(MAX_CLASSES - 1):
        estimator.observe_program("", f"other-{number}", 4.0)
        estimator.observe_program("", "kept", 4.0)

    assert estimator.expect("", "kept", 1.0) == 3.0
    assert estimator.expect("", "forgotten", 1.0) is None


def test_tenants_learn_nothing_from_each_other() -> None:
    estimator = SizeEstimator()
    for _ in range(LEAST_PROGRAMS):
        estimator.observe_program("quiet", "chat", 4.0)
        estimator.observe_call("quiet", "chat", 1.0, 10)
    assert estimator.expect("hostile", "chat", 1.0) is None
    assert estimator.expect("hostile", "chat", 1.0, Hints(expected_calls=2)) is None

    estimator.observe_call("hostile", "chat", 100.0, 1)
    for number in range(MAX_CLASSES):
        estimator.observe_program("hostile", f"other-{number}", 4.0)

    assert estimator.expect("quiet", "chat", 1.0) == 3.0
    assert estimator.expect("quiet", "chat", 1.0, Hints(expected_calls=2)) == pytest.approx(2.0)
    assert estimator.expect("hostile", "chat", 1.0) is None
    assert estimator.expect("hostile", "new", 1.0, Hints(expected_calls=2)) == pytest.approx(200.0)


def test_a_class_drops_its_oldest_programs() -> None:
    estimator = SizeEstimator()
    for _ in range(HISTORY_PROGRAMS):
        estimator.observe_program("", "chat", 100.0)
    for _ in range(HISTORY_PROGRAMS):
        estimator.observe_program("", "chat", 7.0)

    assert estimator.expect("", "chat", 0.0) == 7.0


def test_hints_are_converted_to_seconds_by_the_cost_of_the_class() -> None:
    estimator = SizeEstimator()
    estimator.observe_call("", "chat", 2.0, 100)
    estimator.observe_call("", "react", 1.0, 10)

    assert estimator.expect("", "chat", 0.0, Hints(expected_calls=3)) == pytest.approx(6.0)
    assert estimator.expect("", "chat", 0.0, Hints(expected_tokens=50)) == pytest.approx(1.0)
    # A new class costs what all have cost.
    assert estimator.expect("", "new", 0.0, Hints(expected_calls=2)) == pytest.approx(3.0)
    assert estimator.expect("", "new", 0.0, Hints(expected_tokens=110)) == pytest.approx(3.0)


def test_a_hint_has_no_effect_before_the_first_call_has_finished() -> None:
    assert SizeEstimator().expect("", "chat", 0.0, Hints(expected_calls=3)) is None
    assert SizeEstimator().expect("", "chat", 0.0, Hints(expected_tokens=3)) is None
    assert SizeEstimator().expect("", "chat", 0.0, Hints()) is None


def test_a_hint_that_has_run_out_says_nothing() -> None:
    estimator = SizeEstimator()
    estimator.observe_call("", "chat", 2.0, 10)
    assert estimator.expect("", "chat", 1.0, Hints(expected_calls=3.0)) == 6.0
    assert estimator.expect("", "chat", 1.0, Hints(expected_calls=3.0).less(3.0, 0.0)) is None
