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
