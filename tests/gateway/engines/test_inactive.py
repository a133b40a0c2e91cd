"""Why a program is not active, in words."""

from __future__ import annotations

import pytest

from autellix_backend.gateway.engines.inactive import Inactive
from autellix_backend.reports.snapshot import AdmissionSnapshot


def inactive(place: int, *, tokens: int = 5200, programs: int = 11) -> Inactive:
    return Inactive(tokens, place, AdmissionSnapshot(programs, 3, 48_000, 52_000))


def test_a_context_that_does_not_fit_is_named_with_what_is_there() -> None:
    assert inactive(3).text == (
        "inactive: its 5,200-token context does not fit beside 11 active programs "
        "(48,000 of 52,000 tokens); third in order"
    )


def test_one_that_would_fit_waits_for_others() -> None:
    assert inactive(2, tokens=100, programs=1).text == (
        "inactive: its 100-token context waits behind earlier programs beside 1 active program "
        "(48,000 of 52,000 tokens); second in order"
    )


@pytest.mark.parametrize(
    ("place", "expected"),
    [(1, "first"), (10, "tenth"), (11, "11th"), (21, "21st"), (22, "22nd"), (33, "33rd"), (112, "112th")],
)
def test_places_are_ordinals(place: int, expected: str) -> None:
    assert inactive(place).text.endswith(f"; {expected} in order")
