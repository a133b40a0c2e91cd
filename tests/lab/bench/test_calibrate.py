from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from autellix_lab.bench.calibrate import (
    Calibration,
    CalibrationError,
    choose_bounds,
    measure,
    pooled,
    sample,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.generate import generate_programs


def result(thread: str, submit_s: float, finish_s: float, step: int, error: str | None = None) -> CallResult:
    return CallResult(
        program=thread,
        call=0,
        thread="main",
        submit_s=submit_s,
        finish_s=finish_s,
        output_tokens=10,
        finish_step=step,
        error=error,
    )


def test_a_sample_has_enough_tokens_and_programs() -> None:
    programs = generate_programs("mixed", 40, seed=1)
    by_tokens = sample(programs, slots=1, tokens=20_000)
    assert by_tokens == programs[: len(by_tokens)]
    tokens = [program.decode_tokens for program in by_tokens]
    assert sum(tokens[:-1]) < 20_000 <= sum(tokens)
    assert sample(programs, slots=8, tokens=1) == programs[:16]
    assert sample(programs[:3], slots=8, tokens=10**9) == programs[:3]


def test_speed_is_taken_while_enough_programs_are_under_way() -> None:
    results = [result(name, second, second + 1, 10 * (second + 1)) for name in "abc" for second in range(10)]
    # One goes on alone, at a third of the speed, which is not the engine's.
    results += [result("a", second, second + 1, 10 * (second + 1)) for second in range(10, 40)]
    found = measure(results, slots=2)
    assert found.tokens_per_s == pytest.approx(30)
    assert found.step_s == pytest.approx(0.1)
    assert found.window_s == pytest.approx(8)


def test_measurements_are_pooled_by_their_windows() -> None:
    fast = Calibration(tokens_per_s=40.0, window_s=1.0, calls=3, step_s=0.1)
    slow = Calibration(tokens_per_s=20.0, window_s=3.0, calls=5, step_s=0.2)
    # 10 + 15 steps in 4 s.
    assert pooled([fast, slow]) == Calibration(tokens_per_s=25.0, window_s=4.0, calls=8, step_s=0.16)
    uncounted = replace(fast, step_s=math.inf)
    assert pooled([uncounted]) == uncounted


def test_lost_calls_spoil_a_calibration() -> None:
    with pytest.raises(CalibrationError, match="1 of 1 calibration calls were lost: boom"):
        measure([result("a", 0, 1, 1, error="boom")], slots=1)


@pytest.mark.parametrize("results", [[], [result("a", 0, 1, 1)]])
def test_too_little_is_an_error(results: list[CallResult]) -> None:
    with pytest.raises(CalibrationError):
        measure(results, slots=1)


def test_rho_is_offered_tokens_over_capacity() -> None:
    calibration = Calibration(tokens_per_s=1000.0, window_s=1.0, calls=1, step_s=0.004)
    programs = generate_programs("chat", 20, seed=1)
    tokens = sum(program.decode_tokens for program in programs)
    assert calibration.rate_for(0.5, programs) * tokens / 20 == pytest.approx(500)
    bounds = choose_bounds(calibration, programs)
    calls = sum(len(program.calls) for program in programs)
    assert bounds[0] == pytest.approx(2 * tokens / calls * 0.004, rel=1e-3)
    assert [later / earlier for earlier, later in itertools.pairwise(bounds)] == pytest.approx(
        [2.0] * 8, rel=1e-3
    )
