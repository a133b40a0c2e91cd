"""The record of what a client says of its program."""

from __future__ import annotations

import pytest

from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.priority import Priority


@pytest.mark.parametrize("hints", [Hints(expected_calls=1.0), Hints(expected_tokens=1.0, group="g")])
def test_a_size_is_a_number_of_calls_or_tokens(hints: Hints) -> None:
    assert hints.has_size
    assert not Hints(group="g", return_s=1.0, priority=Priority.BATCH).has_size
    assert not NO_HINTS.has_size


def test_a_hint_moves_with_the_program() -> None:
    whole = Hints(expected_calls=3, expected_tokens=100).plus(2, 50)
    assert whole == Hints(expected_calls=5, expected_tokens=150)
    assert whole.less(4, 100) == Hints(expected_calls=1, expected_tokens=50)
    assert whole.less(5, 200) == Hints()
    assert Hints().plus(1, 1) == Hints() == Hints().less(1, 1)


def test_a_later_size_keeps_the_other_hints() -> None:
    hints = Hints(group="g", class_name="c", return_s=1.0, expected_calls=3.0)
    assert hints.less(1, 0) == Hints(group="g", class_name="c", return_s=1.0, expected_calls=2.0)
