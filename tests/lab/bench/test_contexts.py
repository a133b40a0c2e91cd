from __future__ import annotations

import pytest

from autellix_lab.bench.contexts import mean_context_tokens
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def program(name: str, prefix: int | None) -> ProgramTrace:
    """Two calls with contexts of 110 and 150 tokens, the prefix included."""
    first = CallTrace(id=0, parents=(), thread="main", prefill_tokens=100, decode_tokens=10)
    second = CallTrace(
        id=1,
        parents=(0,),
        thread="main",
        prefill_tokens=140,
        decode_tokens=10,
        shared_prefix_tokens=110,
        prefix_from=0,
    )
    return ProgramTrace(source="s", program_id=name, calls=(first, second), system_prefix_tokens=prefix)


def played(name: str, call: int, submit_s: float, finish_s: float, error: str | None = None) -> CallResult:
    return CallResult(
        program=name, call=call, thread="main", submit_s=submit_s, finish_s=finish_s, error=error
    )


def test_a_program_asks_for_the_context_of_its_latest_call() -> None:
    """It does so from its arrival on, and between calls."""
    results = [played("a", 0, 2.0, 5.0), played("a", 1, 6.0, 11.0)]
    assert mean_context_tokens([program("a", None)], [1.0], results) == pytest.approx(
        (110 * 5 + 150 * 5) / 10
    )


def test_a_shared_prefix_counts_once() -> None:
    results = [played(name, call, 5.0 * call, 5.0 * call + 5) for name in "ab" for call in (0, 1)]
    programs = [program(name, 80) for name in "ab"]
    assert mean_context_tokens(programs, [0.0, 0.0], results) == pytest.approx(
        80 + 2 * (30 * 5 + 70 * 5) / 10
    )


def test_time_without_programs_does_not_count() -> None:
    results = [played("a", 0, 0.0, 1.0), played("a", 1, 1.0, 2.0), played("b", 0, 9.0, 10.0)]
    programs = [program(name, None) for name in "ab"]
    assert mean_context_tokens(programs, [0.0, 9.0], results) == pytest.approx((110 + 150 + 110) / 3)


def test_nothing_answered_asks_for_nothing() -> None:
    assert mean_context_tokens([program("a", 80)], [0.0], [played("a", 0, 0.0, 0.0, "lost")]) == 0.0
