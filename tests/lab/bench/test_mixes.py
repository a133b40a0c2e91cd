"""Closed-loop mixes: their length, and the calls that count."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_lab.bench.mixes import Mix, measure_mixes, measured_calls
from autellix_lab.bench.results import CallResult
from autellix_lab.sim.calibrate import FitError
from autellix_lab.workload.trace import ProgramTrace


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"error": "gone"}, "m: 1 of 1 calls were lost: gone"),
        ({"receipt": None}, "m: an answer came without an engine report"),
        ({"receipt": {"estimated": True, "service_s": 1.0}}, "m: an answer came without"),
    ],
)
def test_calls_without_reports_are_refused(fields: dict[str, Any], message: str) -> None:
    """An engine that is not ours cannot be fitted."""
    result = CallResult(program="p", call=0, thread="main", submit_s=0.0, finish_s=1.0, **fields)

    with pytest.raises(FitError, match=message):
        measured_calls("m", [result])


def answer(program: str, call: int, preemptions: int = 0) -> CallResult:
    receipt = {
        "arrival_step": 2,
        "finish_step": 10,
        "engine_steps": 3,
        "service_s": 0.3,
        "preemptions": preemptions,
    }
    return CallResult(
        program=program,
        call=call,
        thread="main",
        submit_s=0.0,
        finish_s=0.5,
        prompt_tokens=20,
        output_tokens=3,
        cached_tokens=4,
        receipt=receipt,
    )


def test_mixes_are_as_long_as_their_share_of_the_time() -> None:
    """Warm-up calls of 0.5 s: of ten seconds for two mixes, ten calls fill five; long answers take longer."""
    played: list[tuple[str, int, int]] = []

    def play(title: str, programs: Any) -> list[CallResult]:
        found: list[ProgramTrace] = list(programs)
        played.append((title, len(found), len(found[0].calls)))
        return [answer(program.program_id, call.id) for program in found for call in program.calls]

    short = Mix(name="short", clients=1, prompt_tokens=5, answer_tokens=32)
    long = Mix(name="long", clients=4, prompt_tokens=5, answer_tokens=160)
    measured = measure_mixes([short, long], play, 10.0, lambda _: None)

    assert played == [("warm-up short", 1, 2), ("warm-up long", 4, 2), ("short", 1, 10), ("long", 4, 2)]
    assert len(measured) == 10 + 4 * 2
