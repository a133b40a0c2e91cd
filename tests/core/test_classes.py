"""Sizes by class: the predictions, their measured error, drift, and the bounds."""

from __future__ import annotations

import math
import random

import pytest

from autellix_backend.core.classes import (
    CHECKPOINTS,
    HISTORY_PROGRAMS,
    KEPT_AFTER_DRIFT,
    LEAST_IN_BUCKET,
    LEAST_PROGRAMS,
    LEAST_SCORED,
    MAX_CLASSES,
    ClassKey,
    ClassReport,
    ClassSizes,
    ObservedProgram,
)

CHAT = ClassKey("", "chat")


def begin(
    sizes: ClassSizes, *attained: float, key: ClassKey = CHAT, prompt_tokens: float = 100
) -> ObservedProgram:
    """Return a program whose n-th call arrived with the n-th work attained."""
    program = ObservedProgram(key, prompt_tokens)
    for finished, work in enumerate(attained):
        sizes.on_call(program, finished_calls=finished, attained_work=work)
    return program


def run(
    sizes: ClassSizes, work: float, *attained: float, key: ClassKey = CHAT, prompt_tokens: float = 100
) -> None:
    """Let a program begin and end."""
    sizes.on_end(begin(sizes, *(attained or (0.0,)), key=key, prompt_tokens=prompt_tokens), work)


def report(sizes: ClassSizes) -> ClassReport:
    """Return what is known of the only class."""
    (only,) = sizes.reports()
    return only


def predicted(program: ObservedProgram, checkpoint: int = 0) -> float | None:
    """Return the prediction for a program at a checkpoint."""
    return program.points[checkpoint].predicted


def test_a_class_predicts_its_median_after_enough_programs() -> None:
    sizes = ClassSizes()
    for work in range(1, LEAST_PROGRAMS):
        run(sizes, float(work))
    assert predicted(begin(sizes, 0.0)) is None

    run(sizes, float(LEAST_PROGRAMS))

    assert predicted(begin(sizes, 0.0)) == pytest.approx(math.sqrt(4 * 5))
    assert predicted(begin(sizes, 0.0, key=ClassKey("", "tree"))) is None
    assert predicted(begin(sizes, 0.0, key=ClassKey("other", "chat"))) is None


def test_programs_with_equal_first_prompts_predict_each_other() -> None:
    sizes = ClassSizes()
    for _ in range(LEAST_PROGRAMS):
        run(sizes, 10.0, prompt_tokens=100)
        run(sizes, 1000.0, prompt_tokens=5000)

    assert predicted(begin(sizes, 0.0, prompt_tokens=127)) == 10.0
    assert predicted(begin(sizes, 0.0, prompt_tokens=4097)) == 1000.0
    # No ended program had such a prompt.
    assert predicted(begin(sizes, 0.0, prompt_tokens=0)) == 100.0


def test_a_later_call_adds_the_usual_remainder_to_what_is_attained() -> None:
    sizes = ClassSizes()
    for _ in range(LEAST_PROGRAMS):
        run(sizes, 50.0, 0.0, 20.0)

    program = begin(sizes, 0.0, 90.0)

    assert predicted(program, 0) == 50.0
    assert predicted(program, 1) == 120.0


def test_past_the_checkpoints_of_all_others_the_larger_programs_predict() -> None:
    sizes = ClassSizes()
    for work in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0):
        run(sizes, work)

    assert predicted(begin(sizes, 0.0, 4.0), 1) == 7.0
    assert LEAST_IN_BUCKET == 4
    assert predicted(begin(sizes, 0.0, 6.0), 1) is None


def test_nothing_to_expect_is_no_prediction() -> None:
    sizes = ClassSizes()
    for _ in range(LEAST_PROGRAMS):
        run(sizes, 5.0, 0.0, 9.0)
    # Its first call ended without a known token, and the others needed nothing beyond theirs.
    assert predicted(begin(sizes, 0.0, 0.0), 1) is None


def test_only_the_arrivals_at_checkpoints_predict() -> None:
    sizes = ClassSizes()
    program = begin(sizes, *(float(finished) for finished in range(9)))
    assert tuple(program.points) == CHECKPOINTS[:4]
    assert [point.attained for point in program.points.values()] == [0, 1, 3, 7]


def test_a_program_seen_late_has_no_earlier_checkpoints() -> None:
    sizes = ClassSizes()
    program = ObservedProgram(CHAT, 100)

    sizes.on_call(program, finished_calls=5, attained_work=9.0)
    # A call that another gateway counted less of.
    sizes.on_call(program, finished_calls=1, attained_work=4.0)

    assert {checkpoint: point.attained for checkpoint, point in program.points.items()} == {3: 9.0}


def test_errors_are_those_of_programs_that_were_predicted_before_they_ended() -> None:
    sizes = ClassSizes()
    for _ in range(LEAST_PROGRAMS):
        run(sizes, 10.0)
    assert report(sizes).errors[0].error is None

    run(sizes, 20.0)

    first = report(sizes).errors[0]
    assert (first.call, first.scored) == (1, 1)
    assert first.error == pytest.approx(math.log(2))


def test_a_class_whose_first_prompt_decides_is_informative() -> None:
    sizes = ClassSizes()
    for _ in range(LEAST_PROGRAMS + LEAST_SCORED):
        run(sizes, 10.0, prompt_tokens=100)
        run(sizes, 1000.0, prompt_tokens=5000)

    assert [error.is_predicted for error in report(sizes).errors[:2]] == [True, False]
    assert predicted(begin(sizes, 0.0, prompt_tokens=5000)) == 1000.0
    assert report(sizes).spread == pytest.approx(math.log(10), rel=0.1)


def test_a_class_without_a_pattern_is_not_informative() -> None:
    sizes, numbers = ClassSizes(), random.Random(0)
    for _ in range(4 * HISTORY_PROGRAMS):
        run(sizes, numbers.lognormvariate(0, 1), prompt_tokens=numbers.choice((100, 5000)))
    assert not report(sizes).errors[0].is_predicted
    assert report(sizes).drifts == 0
    assert report(sizes).errors[0].error == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_a_lasting_change_of_sizes_forgets_the_old_programs(factor: float) -> None:
    sizes, numbers = ClassSizes(), random.Random(1)
    for _ in range(HISTORY_PROGRAMS):
        run(sizes, numbers.lognormvariate(0, 0.5))
    assert report(sizes).drifts == 0

    pending = begin(sizes, 0.0)
    count = 0
    while report(sizes).drifts == 0:
        run(sizes, factor * numbers.lognormvariate(0, 0.5))
        count += 1

    assert count < KEPT_AFTER_DRIFT
    assert report(sizes).is_drifting
    assert not report(sizes).errors[0].is_predicted
    # A prediction from before the drift says nothing about the tables after it.
    sizes.on_end(pending, factor)
    assert report(sizes).errors[0].scored == 0
    for _ in range(LEAST_SCORED):
        run(sizes, factor * numbers.lognormvariate(0, 0.5))
    assert not report(sizes).is_drifting
    assert report(sizes).ended == HISTORY_PROGRAMS + 1 + count + LEAST_SCORED


def test_a_program_without_work_teaches_nothing() -> None:
    sizes = ClassSizes()
    run(sizes, 0.0)
    assert sizes.spread(CHAT.tenant) is None
    (only,) = sizes.reports()
    assert (only.ended, only.median_work, only.p90_work) == (0, None, None)


def test_the_spread_of_all_classes_of_a_tenant_follows_its_ended_programs() -> None:
    sizes = ClassSizes()
    for _ in range(LEAST_PROGRAMS - 1):
        run(sizes, 1.0, key=ClassKey("a", "small"))
    assert sizes.spread("a") is None
    for _ in range(HISTORY_PROGRAMS):
        run(sizes, 1.0, key=ClassKey("a", "small"))
        run(sizes, math.e**2, key=ClassKey("a", "large"))
        run(sizes, 1.0, key=ClassKey("b", "large"))
    assert sizes.spread("a") == pytest.approx(1.0, rel=0.05)
    assert (sizes.spread("b") or 1.0) < 0.2
    assert all(row.spread < 0.2 for row in sizes.reports())


def test_a_tenants_reports_are_its_own() -> None:
    sizes = ClassSizes()
    keys = [ClassKey("b", "chat"), ClassKey("a", "tree"), ClassKey("a", "chat")]
    for key in keys:
        run(sizes, 1.0, key=key)
    assert [row.key for row in sizes.reports("a")] == [keys[2], keys[1]]
    assert [row.key for row in sizes.reports()] == [keys[2], keys[1], keys[0]]
    assert not list(sizes.reports("c"))


def test_the_report_has_quantiles_of_the_remembered_programs() -> None:
    sizes = ClassSizes()
    for work in range(1, 11):
        run(sizes, float(work))
    assert (report(sizes).median_work, report(sizes).p90_work) == (math.sqrt(5 * 6), 9.0)


def test_one_tenants_classes_do_not_displace_anothers() -> None:
    sizes = ClassSizes()
    run(sizes, 1.0, key=ClassKey("quiet", "chat"))
    for number in range(MAX_CLASSES + 1):
        run(sizes, 1.0, key=ClassKey("busy", f"{number:03}"))
        run(sizes, 1.0, key=ClassKey("busy", "000"))

    names = [row.key.name for row in sizes.reports("busy")]

    assert len(names) == MAX_CLASSES
    assert names[:2] == ["000", "002"]
    assert len(list(sizes.reports("quiet"))) == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_tables_hold_the_latest_programs_only(seed: int) -> None:
    numbers, sizes, fresh = random.Random(seed), ClassSizes(), ClassSizes()
    prompts = (1.0, 100.0, 5000.0)
    # The only one of its bucket.
    run(sizes, 20.0, prompt_tokens=1e5)
    for index in range(HISTORY_PROGRAMS + 40):
        work, calls = numbers.lognormvariate(3, 1), numbers.randint(1, 10)
        attained, prompt_tokens = [work * call / calls for call in range(calls)], numbers.choice(prompts)
        run(sizes, work, *attained, prompt_tokens=prompt_tokens)
        if index >= 40:
            run(fresh, work, *attained, prompt_tokens=prompt_tokens)

    assert report(sizes).drifts == report(fresh).drifts == 0
    for prompt_tokens in (*prompts, 1e5):
        works = [
            begin(each, 0.0, 1.0, 2.0, 3.0, prompt_tokens=prompt_tokens).points for each in (sizes, fresh)
        ]
        assert [point.predicted for point in works[0].values()] == [
            point.predicted for point in works[1].values()
        ]
