"""Why a program is not active, in words."""

from __future__ import annotations

import pytest

from autellix_backend.gateway.engines.inactive import Inactive
from autellix_backend.reports.snapshot import AdmissionSnapshot


def inactive(place: int, *, tokens: int = 5200, used: int = 48_000) -> Inactive:
    return Inactive(tokens, place, AdmissionSnapshot(11, 3, used, 52_000))


@pytest.mark.parametrize(
    ("place", "ahead"),
    [(1, "No program is"), (2, "1 program is"), (27, "26 programs are")],
)
def test_a_context_that_does_not_fit_is_stated_with_the_free_memory(place: int, ahead: str) -> None:
    assert inactive(place).text == (f"it needs 5,200 tokens, 4,000 of 52,000 are free. {ahead} ahead of it")


def test_one_that_would_fit_waits_for_those_ahead() -> None:
    assert inactive(2, tokens=100).text == (
        "it needs 100 tokens, 4,000 of 52,000 are free, but 1 program is ahead of it"
    )


def test_memory_that_is_more_than_full_has_nothing_free() -> None:
    assert inactive(1, used=60_000).text.startswith("it needs 5,200 tokens, 0 of 52,000 are free.")
