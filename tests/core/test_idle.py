"""The gaps between calls, by which idle programs keep their memory."""

from __future__ import annotations

from autellix_backend.core.admission.idle import GAP_WINDOW, MAX_CLASSES, MIN_GAPS, ClassGaps


def test_the_last_gaps_of_a_class_decide() -> None:
    gaps = ClassGaps()
    for gap_s in range(MIN_GAPS - 1):
        gaps.add("", "a", gap_s)
    assert gaps.long_gap_s("", "a") is None
    gaps.add("", "a", 100.0)
    assert gaps.long_gap_s("", "a") == 100.0

    for _ in range(GAP_WINDOW):
        gaps.add("", "a", 2.0)
    assert gaps.long_gap_s("", "a") == 2.0


def test_the_class_seen_longest_ago_is_forgotten() -> None:
    gaps = ClassGaps()
    for index in range(MAX_CLASSES):
        for _ in range(MIN_GAPS):
            gaps.add("", str(index), 1.0)
    gaps.add("", "0", 1.0)

    gaps.add("", "one more", 1.0)

    assert gaps.long_gap_s("", "0") == 1.0
    assert gaps.long_gap_s("", "1") is None


def test_a_tenant_with_many_classes_drives_out_its_own_alone() -> None:
    gaps = ClassGaps()
    for _ in range(MIN_GAPS):
        gaps.add("few", "coder", 1.0)
        gaps.add("other", "coder", 2.0)

    for index in range(10_000):
        gaps.add("many", str(index), 3.0)

    assert gaps.long_gap_s("few", "coder") == 1.0
    assert gaps.long_gap_s("other", "coder") == 2.0
