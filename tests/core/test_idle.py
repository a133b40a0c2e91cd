"""The gaps between calls, by which idle programs keep their memory."""

from __future__ import annotations

import random

import pytest

from autellix_backend.core.admission.idle import GAP_SLACK, GAP_WINDOW, MAX_CLASSES, MIN_GAPS, ClassGaps

EVICTION_S = 10.0


def hold_s(gaps: ClassGaps, tenant: str, class_name: str, eviction_s: float = EVICTION_S) -> float | None:
    """Return the hold without its slack."""
    found = gaps.cheapest_hold_s(tenant, class_name, eviction_s)
    return None if found is None else found / GAP_SLACK


def cost_s(gaps: list[float], kept_s: float, eviction_s: float) -> float:
    """Return what keeping idle programs for so long costs over their gaps."""
    return sum(gap_s if gap_s <= kept_s else kept_s + eviction_s for gap_s in gaps)


@pytest.mark.parametrize(
    ("made", "expected_s"),
    [
        ([2.0] * 8, 2.0),
        ([9.9] * 8, 9.9),
        ([10.1] * 8, 0.0),
        ([1.0] * 6 + [30.0] * 2, 1.0),
        ([4.0] + [30.0] * 7, 0.0),
        ([0.5] * 2 + [5.0] * 6, 5.0),
    ],
)
def test_a_program_is_kept_for_the_time_that_would_have_cost_least(
    made: list[float], expected_s: float
) -> None:
    """An eviction costs as much as ten seconds of keeping."""
    gaps = ClassGaps()
    for gap_s in made:
        gaps.add("", "a", gap_s)

    assert hold_s(gaps, "", "a") == pytest.approx(expected_s)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_time_would_have_cost_less(seed: int) -> None:
    rng = random.Random(seed)
    made = [rng.lognormvariate(1.0, 1.5) for _ in range(rng.randrange(MIN_GAPS, GAP_WINDOW))]
    gaps = ClassGaps()
    for gap_s in made:
        gaps.add("", "a", gap_s)
    eviction_s = rng.uniform(0.1, 30.0)

    chosen_s = hold_s(gaps, "", "a", eviction_s)

    assert chosen_s is not None
    least_s = min(cost_s(made, kept_s, eviction_s) for kept_s in (0.0, *made))
    assert cost_s(made, chosen_s + 1e-9, eviction_s) == pytest.approx(least_s)


def test_the_last_gaps_of_a_class_decide() -> None:
    gaps = ClassGaps()
    for gap_s in range(MIN_GAPS - 1):
        gaps.add("", "a", gap_s)
    assert hold_s(gaps, "", "a") is None
    gaps.add("", "a", 100.0)
    assert hold_s(gaps, "", "a") == pytest.approx(MIN_GAPS - 2.0)

    for _ in range(GAP_WINDOW):
        gaps.add("", "a", 2.0)
    assert hold_s(gaps, "", "a") == pytest.approx(2.0)


def test_the_class_seen_longest_ago_is_forgotten() -> None:
    gaps = ClassGaps()
    for index in range(MAX_CLASSES):
        for _ in range(MIN_GAPS):
            gaps.add("", str(index), 1.0)
    gaps.add("", "0", 1.0)

    gaps.add("", "one more", 1.0)

    assert hold_s(gaps, "", "0") == pytest.approx(1.0)
    assert hold_s(gaps, "", "1") is None


def test_a_tenant_with_many_classes_drives_out_its_own_alone() -> None:
    gaps = ClassGaps()
    for _ in range(MIN_GAPS):
        gaps.add("few", "coder", 1.0)
        gaps.add("other", "coder", 2.0)

    for index in range(10_000):
        gaps.add("many", str(index), 3.0)

    assert hold_s(gaps, "few", "coder") == pytest.approx(1.0)
    assert hold_s(gaps, "other", "coder") == pytest.approx(2.0)
