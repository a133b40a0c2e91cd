"""A window of the history as a workload."""

from __future__ import annotations

import random
from typing import Any

import pytest

from autellix_lab.sim.window import LEAST_TOKEN_S, busy_period, program_trace, token_times


def call(call_id: str, start_s: float, finish_s: float, **fields: Any) -> dict[str, Any]:
    usual = {
        "call_id": call_id,
        "thread_id": "0",
        "parents": None,
        "start_s": start_s,
        "finish_s": finish_s,
        "service_s": finish_s - start_s,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 10,
    }
    return {**usual, **fields}


def row(program_id: str, began_at_s: float, duration_s: float) -> dict[str, Any]:
    return {"program_id": program_id, "began_at_s": began_at_s, "duration_s": duration_s}


ROWS = [row("late", 9.0, 1.0), row("a", 0.0, 2.0), row("b", 1.0, 0.5), row("c", 2.0, 3.0), row("d", 6.0, 2.0)]


@pytest.mark.parametrize(
    ("program_id", "expected"), [("a", "abc"), ("b", "abc"), ("c", "abc"), ("d", "d"), ("late", ["late"])]
)
def test_a_busy_period_is_what_ran_beside_one_another(program_id: str, expected: str) -> None:
    found = [program["program_id"] for program in busy_period(ROWS, program_id)]
    assert found == list(expected)


def test_a_program_that_is_not_there_has_none() -> None:
    with pytest.raises(KeyError):
        busy_period(ROWS, "nobody")


def test_calls_depend_on_the_parents_that_had_ended() -> None:
    calls = [
        call("a", 0.0, 1.0),
        call("b", 1.5, 3.0, parents=["a"], cached_tokens=64),
        call("c", 2.0, 4.0, thread_id="1", parents=["a", "unknown"]),
        call("d", 4.5, 5.0, parents=["b", "c"], cached_tokens=500),
        call("e", 4.6, 5.0, thread_id="2", parents=[]),
    ]
    trace = program_trace({"program_id": "p", "began_at_s": 7.0, "calls": calls[::-1]})

    assert trace is not None and trace.arrival_s == 7.0
    assert [each.parents for each in trace.calls] == [(), (0,), (0,), (1, 2), ()]
    assert [each.gap_before_s for each in trace.calls] == pytest.approx([0.0, 0.5, 1.0, 0.5, 4.6])
    assert [each.prefix_from for each in trace.calls] == [None, 0, 0, 2, None]
    # Never more than the call before has left, nor than the prompt.
    assert [each.shared_prefix_tokens for each in trace.calls] == [0, 64, 0, 100, 0]


def test_without_parents_a_call_follows_its_thread_and_else_the_last_of_all() -> None:
    calls = [
        call("a", 0.0, 1.0),
        call("b", 1.0, 2.0, thread_id="1"),
        call("c", 3.0, 4.0),
        call("d", 0.5, 0.9),
    ]
    trace = program_trace({"program_id": "p", "began_at_s": 0.0, "calls": calls})

    assert trace is not None
    by_start = ["a", "d", "b", "c"]
    parents = {by_start[each.id]: [by_start[parent] for parent in each.parents] for each in trace.calls}
    assert parents == {"a": [], "d": [], "b": ["a"], "c": ["a"]}


def test_many_calls_follow_the_same_as_when_each_looks_at_all() -> None:
    chance = random.Random(3)
    starts = sorted(chance.randrange(100) / 10 for _ in range(300))
    calls = [
        call(f"c-{number}", start_s, start_s + chance.randrange(1, 30) / 10,
             thread_id=str(chance.randrange(8)))
        for number, start_s in enumerate(starts)
    ]  # fmt: skip
    trace = program_trace({"program_id": "p", "began_at_s": 0.0, "calls": calls})

    assert trace is not None
    ends = [(each.start_s or 0.0) + (each.latency_s or 0.0) for each in trace.calls]
    for each in trace.calls:
        before = [other for other in trace.calls[: each.id] if ends[other.id] <= (each.start_s or 0.0)]
        same = [other for other in before if other.thread == each.thread]
        expected = max(same or before, key=lambda other: ends[other.id], default=None)
        assert each.parents == (() if expected is None else (expected.id,))


def test_a_program_whose_tokens_are_unknown_is_no_workload() -> None:
    calls = [call("a", 0.0, 1.0, prompt_tokens=None)]
    assert program_trace({"program_id": "p", "began_at_s": 0.0, "calls": calls}) is None


def test_times_of_tokens_are_fitted_to_the_calls_service() -> None:
    calls = [
        call("a", 0.0, 1.0, prompt_tokens=1000, output_tokens=1, service_s=1.02),
        call("b", 0.0, 1.0, prompt_tokens=100, output_tokens=100, service_s=2.1),
        call("c", 0.0, 1.0, prompt_tokens=500, cached_tokens=500, output_tokens=50, service_s=1.0),
        call("d", 0.0, 1.0, prompt_tokens=None, output_tokens=None, service_s=0.0),
    ]
    assert token_times([{"calls": calls}]) == pytest.approx((0.001, 0.02))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], (0.0, LEAST_TOKEN_S)),
        ([call("a", 0.0, 1.0, output_tokens=10, service_s=0.5)], (0.0, 0.05)),
        # Prompts alike, and more service for fewer output tokens: no time of a token explains it.
        (
            [
                call("a", 0.0, 1.0, prompt_tokens=1, output_tokens=10, service_s=1.0),
                call("b", 0.0, 1.0, prompt_tokens=9, output_tokens=20, service_s=1.0),
            ],
            (0.0, 0.06),
        ),
    ],
)
def test_times_are_never_negative(calls: list[dict[str, Any]], expected: tuple[float, float]) -> None:
    assert token_times([{"calls": calls}]) == pytest.approx(expected)
