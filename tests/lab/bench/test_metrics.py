from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from autellix_lab.bench.metrics import (
    critical_path,
    outcomes,
    quotients,
    summarise,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def call(number: int, *parents: int) -> CallTrace:
    return CallTrace(id=number, parents=parents, thread="main", prefill_tokens=4, decode_tokens=10)


def program(*calls: CallTrace, name: str = "p") -> ProgramTrace:
    return ProgramTrace(source="test", program_id=name, calls=calls)


def result(number: int, submit_s: float, finish_s: float, **fields: Any) -> CallResult:
    return CallResult(
        program="p",
        call=number,
        thread="main",
        submit_s=submit_s,
        finish_s=finish_s,
        **{"output_tokens": 10, **fields},
    )


DIAMOND = program(call(0), call(1, 0), call(2, 0), call(3, 1, 2))


def test_critical_path_is_the_longest_chain() -> None:
    assert critical_path(DIAMOND, lambda number: [1.0, 5.0, 2.0, 1.0][number]) == 7.0


def test_token_latency_divides_the_critical_path_by_all_tokens() -> None:
    results = [result(0, 1, 2), result(1, 2, 7), result(2, 2, 4), result(3, 7, 8)]
    (outcome,) = outcomes([DIAMOND], [0.5], results)
    assert outcome.token_latency_s == pytest.approx(7 / 40)
    assert outcome.latency_s == pytest.approx(7.5)


def test_token_latency_leaves_tool_time_out_and_latency_does_not() -> None:
    chain = program(call(0), call(1, 0))
    (outcome,) = outcomes([chain], [0.0], [result(0, 0, 1), result(1, 9, 10)])
    assert outcome.token_latency_s == pytest.approx(2 / 20)
    assert outcome.latency_s == pytest.approx(10)


def test_steps_come_from_the_receipts() -> None:
    chain = program(call(0), call(1, 0))
    receipts: list[dict[str, Any]] = [
        {"arrival_step": 10, "finish_step": 20, "wait_s": 0.5, "preemptions": 1},
        {"arrival_step": 25, "finish_step": 40, "wait_s": 0.25, "preemptions": 2},
    ]
    results = [result(number, 0, 1, receipt=receipt) for number, receipt in enumerate(receipts)]
    (outcome,) = outcomes([chain], [0.0], results)
    assert (outcome.latency_steps, outcome.token_latency_steps) == (30, 25 / 20)
    assert (outcome.wait_s, outcome.preemptions) == (0.75, 3)


def test_the_clock_of_a_run_precedes_receipts() -> None:
    """A program arrives with its first call then."""
    chain = program(call(0), call(1, 0))
    receipt = {"arrival_step": 1, "finish_step": 2}
    results = [
        result(0, 5, 6, receipt=receipt, submit_step=100.0, finish_step=110.0),
        result(1, 6, 9, receipt=receipt, submit_step=112.0, finish_step=130.0),
    ]
    (outcome,) = outcomes([chain], None, results)
    assert (outcome.latency_s, outcome.latency_steps, outcome.token_latency_steps) == (4, 30, 28 / 20)


def test_without_receipts_there_are_no_steps() -> None:
    summary = summarise([program(call(0))], [0.0], [result(0, 0, 1)])
    assert "token_latency_s" in summary.metrics
    assert "token_latency_steps" not in summary.metrics
    assert summary.totals["without_receipt"] == 1


def test_a_program_with_a_lost_call_has_no_outcome_but_is_counted() -> None:
    chain = program(call(0), call(1, 0))
    results = [result(0, 0, 1), result(1, 1, 2, error="APITimeoutError: late")]
    summary = summarise([chain], [0.0], results)
    assert (summary.programs, summary.lost_calls) == (0, 1)
    assert summary.errors == ("APITimeoutError: late",)


def test_quotients_leave_out_a_zero_baseline() -> None:
    def metrics(value: float) -> dict[str, dict[str, float]]:
        return {"latency_s": {"mean": value}}

    assert quotients(metrics(2.0), metrics(4.0)) == {"latency_s": {"mean": 0.5}}
    assert quotients(metrics(2.0), metrics(0.0)) == {"latency_s": {}}


def test_a_result_survives_its_line() -> None:
    original = result(3, 0.5, 1.5, receipt={"level": 2})
    assert CallResult(**json.loads(json.dumps(dataclasses.asdict(original)))) == original
    assert original.receipt_number("level") == 2.0
    assert original.receipt_number("wait_s") is None


def test_estimates_do_not_count_as_reports() -> None:
    chain = program(call(0), call(1, 0))
    estimate = {"wait_s": 0.0, "service_s": 9.0, "preemptions": None, "estimated": True}
    account = {"wait_s": 0.5, "service_s": 1.0, "preemptions": 2, "estimated": False}
    (unknown,) = outcomes([chain], [0.0], [result(0, 0, 1, receipt=estimate), result(1, 1, 2)])
    assert (unknown.wait_s, unknown.service_s, unknown.preemptions) == (None, None, None)
    results = [result(0, 0, 1, receipt=estimate), result(1, 1, 2, receipt=account)]
    (known,) = outcomes([chain], [0.0], results)
    assert (known.wait_s, known.service_s, known.preemptions) == (0.5, 1.0, 2)


def test_cached_tokens_are_known_only_if_every_call_reports_them() -> None:
    chain = program(call(0), call(1, 0))
    first = result(0, 0, 1, prompt_tokens=10, cached_tokens=4)
    (known,) = outcomes([chain], [0.0], [first, result(1, 1, 2, prompt_tokens=20, cached_tokens=0)])
    assert (known.cached_tokens, known.prompt_tokens) == (4, 30)
    (unknown,) = outcomes([chain], [0.0], [first, result(1, 1, 2, prompt_tokens=20)])
    assert unknown.cached_tokens is None
