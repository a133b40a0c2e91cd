"""How durations read."""

from __future__ import annotations

import pytest

from autellix_backend.observe.durations import seconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0 s"), (0.0994, "99 ms"), (0.25, "0.25 s"), (99.9, "99.9 s"), (250, "250 s")],
)
def test_durations_read_well(value: float, expected: str) -> None:
    assert seconds(value) == expected
