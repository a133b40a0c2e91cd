"""What a call did when, by what its engine reported."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.observe.settled_calls import settled_call

from autellix_backend.console.history.spans import spans
from autellix_backend.observe.settled_call import SettledCall

# mypy: disallow-untyped-decorators=False


def call(finish_s: float = 20.0, **fields: Any) -> SettledCall:
    defaults: dict[str, Any] = {"wait_s": 0.0, "preemptions": 0, "first_token_s": None}
    return settled_call(began_s=110.0, settled_s=100.0 + finish_s, **{**defaults, **fields})


def parts(made: SettledCall) -> list[tuple[str, float, float]]:
    return [(span.kind.value, span.start_s, span.finish_s) for span in spans(made, 100.0)]


def test_a_call_is_cut_by_the_report_of_its_engine() -> None:
    made = call(inactive_s=1.0, wait_s=5.0, runs=((2.0, 5.0), (8.0, 9.5)), prefilled_s=3.0, preemptions=1)

    assert parts(made) == [
        ("inactive", 10.0, 11.0),
        ("waiting", 11.0, 12.0),
        ("prefill", 12.0, 13.0),
        ("decode", 13.0, 15.0),
        ("preempted", 15.0, 18.0),
        ("decode", 18.0, 19.5),
    ]


def test_a_prefill_may_be_preempted() -> None:
    made = call(runs=((0.0, 2.0), (4.0, 10.0)), prefilled_s=5.0, preemptions=1)

    assert parts(made) == [
        ("prefill", 10.0, 12.0),
        ("preempted", 12.0, 14.0),
        ("prefill", 14.0, 15.0),
        ("decode", 15.0, 20.0),
    ]


def test_a_call_may_leave_while_it_is_preempted() -> None:
    made = call(runs=((0.0, 2.0),), prefilled_s=1.0, preemptions=1)

    assert parts(made)[-1] == ("preempted", 12.0, 20.0)


def test_without_runs_the_first_token_ends_the_prefill() -> None:
    assert parts(call(wait_s=1.0, first_token_s=3.0)) == [
        ("waiting", 10.0, 11.0),
        ("prefill", 11.0, 13.0),
        ("decode", 13.0, 20.0),
    ]


def test_an_engine_that_tells_nothing_is_one_part() -> None:
    assert parts(call(wait_s=1.0)) == [("waiting", 10.0, 11.0), ("engine", 11.0, 20.0)]


def test_what_lies_behind_the_end_is_left_out() -> None:
    assert parts(call(finish_s=11.0, wait_s=0.5, runs=((0.5, 1.01), (1.02, 1.03)))) == [
        ("waiting", 10.0, 10.5),
        ("decode", 10.5, 11.0),
    ]


TIMES = st.floats(0.0, 30.0)


@given(
    st.lists(TIMES, max_size=6).map(sorted),
    st.one_of(st.none(), TIMES),
    st.one_of(st.none(), TIMES),
    TIMES,
    TIMES,
    st.integers(0, 4),
)
def test_parts_follow_each_other_within_the_call(
    moments: list[float],
    prefilled_s: float | None,
    first_token_s: float | None,
    wait_s: float,
    inactive_s: float,
    preemptions: int,
) -> None:
    runs = tuple(zip(moments[::2], moments[1::2], strict=False))
    made = call(
        runs=runs,
        prefilled_s=prefilled_s,
        first_token_s=first_token_s,
        wait_s=wait_s,
        inactive_s=inactive_s,
        preemptions=preemptions,
    )
    clock_s = 10.0
    for _, start_s, finish_s in parts(made):
        assert clock_s <= start_s < finish_s <= 20.0
        clock_s = finish_s
