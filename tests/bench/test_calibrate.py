from __future__ import annotations

import itertools

import pytest

from autellix_backend.bench.calibrate import (
    Calibration,
    CalibrationError,
    choose_bounds,
    closed_loop,
    measure,
)
from autellix_backend.bench.results import CallResult
from autellix_backend.workload.generate import generate_programs


def result(lane: str, submit_s: float, finish_s: float, step: int, error: str | None = None) -> CallResult:
    receipt = {"finish_step": step, "service_s": 0.5}
    return CallResult(
        program=lane,
        call=0,
        thread="main",
        submit_s=submit_s,
        finish_s=finish_s,
        output_tokens=10,
        receipt=receipt,
        error=error,
    )


def test_the_closed_loop_fills_twice_the_slots() -> None:
    lanes = closed_loop(generate_programs("mixed", 9, seed=1), slots=4, tokens=40_000)
    assert len(lanes) == 8
    assert not any(lane.is_parallel for lane in lanes)
    assert sum(lane.decode_tokens for lane in lanes) >= 40_000
    tokens = [lane.decode_tokens for lane in lanes]
    assert max(tokens) < 2 * min(tokens)


def test_speed_is_taken_while_every_lane_is_busy() -> None:
    results = [result(lane, second, second + 1, 10 * (second + 1)) for lane in "ab" for second in range(10)]
    results += [result("a", 10, 11, 110)]
    found = measure(results)
    assert found.tokens_per_s == pytest.approx(20)
    assert found.steps_per_s == pytest.approx(10)
    assert found.service_per_token_s == pytest.approx(0.05)
    assert found.window_s == pytest.approx(8)


def test_lost_calls_spoil_a_calibration() -> None:
    with pytest.raises(CalibrationError, match="1 of 1 calibration calls were lost: boom"):
        measure([result("a", 0, 1, 1, error="boom")])


@pytest.mark.parametrize("results", [[], [result("a", 0, 1, 1)]])
def test_too_little_is_an_error(results: list[CallResult]) -> None:
    with pytest.raises(CalibrationError):
        measure(results)


def test_rho_is_offered_tokens_over_capacity() -> None:
    calibration = Calibration(
        tokens_per_s=1000.0, steps_per_s=None, service_per_token_s=0.004, window_s=1.0, calls=1
    )
    programs = generate_programs("chat", 20, seed=1)
    tokens = sum(program.decode_tokens for program in programs)
    assert calibration.rate_for(0.5, programs) * tokens / 20 == pytest.approx(500)
    bounds = choose_bounds(calibration, programs)
    calls = sum(len(program.calls) for program in programs)
    assert bounds[0] == pytest.approx(2 * tokens / calls * 0.004, rel=1e-3)
    assert [later / earlier for earlier, later in itertools.pairwise(bounds)] == pytest.approx(
        [2.0] * 8, rel=1e-3
    )
