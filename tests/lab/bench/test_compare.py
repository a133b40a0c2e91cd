from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from autellix_lab.bench import compare as module
from autellix_lab.bench.calibrate import Calibration, CalibrationError
from autellix_lab.bench.compare import MOST_REPEATS, Load, Target, calibrate, compare
from autellix_lab.bench.replay import ReplayJob
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.generate import generate_programs

PROGRAMS = generate_programs("chat", 5, seed=1)
SPEED = Calibration(tokens_per_s=100.0, window_s=1.0, calls=1, step_s=0.1)
TARGETS = {
    name: Target(base_url=f"http://{name}", model="m", engine_url=f"http://{name}-engine")
    for name in ("fcfs", "plas")
}


def silent(_title: str, _calls: int) -> Callable[[CallResult], None]:
    return lambda _: None


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[ReplayJob]:
    """Record every job; each call takes two seconds from its program's arrival on."""
    played: list[ReplayJob] = []

    def replay(job: ReplayJob, _watch: Callable[[CallResult], None]) -> list[CallResult]:
        played.append(job)
        return [
            CallResult(
                program=program.program_id,
                call=call.id,
                thread=call.thread,
                submit_s=arrival_s,
                finish_s=arrival_s + 2.0,
                output_tokens=call.decode_tokens,
            )
            for program, arrival_s in zip(job.programs, job.arrivals_s, strict=True)
            for call in program.calls
        ]

    monkeypatch.setattr(module, "replay", replay)
    return played


def test_policies_take_turns_in_each_round(jobs: list[ReplayJob]) -> None:
    """In the other order in every second round, and with arrivals of its own in each."""
    load = Load(name="low", rho=0.5, programs=PROGRAMS)
    titles: list[tuple[str, int]] = []

    def follow(title: str, calls: int) -> Callable[[CallResult], None]:
        titles.append((title, calls))
        return lambda _: None

    found = compare(TARGETS, load, SPEED, rounds=2, seed=3, follow=follow)
    assert titles[:2] == [(f"low, round 1 of 2, {policy}", load.calls) for policy in ("fcfs", "plas")]
    assert [job.base_url for job in jobs] == [f"http://{name}" for name in ("fcfs", "plas", "plas", "fcfs")]
    assert [job.arrivals_s == jobs[0].arrivals_s for job in jobs] == [True, True, False, False]
    assert jobs[2].arrivals_s == jobs[3].arrivals_s
    assert [job.salt for job in jobs] == ["3:low:1", "3:low:1", "3:low:2", "3:low:2"]
    for run in found.runs:
        # From its first call on.
        assert [outcome.latency_s for outcome in run.outcomes] == pytest.approx([2.0] * 5)


def test_programs_arrive_by_the_steps_of_the_engine_that_serves_them(jobs: list[ReplayJob]) -> None:
    """Also on a slower machine, whose steps are as many."""
    load = Load(name="high", rho=2.0, programs=PROGRAMS)
    for slower in (1.0, 3.0):
        speed = replace(SPEED, tokens_per_s=100.0 / slower, step_s=0.01 * slower)
        compare(TARGETS, load, speed, rounds=1, seed=3, follow=silent)

    assert [job.engine_url for job in jobs] == ["http://fcfs-engine", "http://plas-engine"] * 2
    first, *others = ([arrival_s / job.step_s for arrival_s in job.arrivals_s] for job in jobs)
    assert all(steps == pytest.approx(first) for steps in others)
    with pytest.raises(CalibrationError, match="steps were not counted"):
        compare(TARGETS, load, replace(SPEED, step_s=math.inf), rounds=1, seed=3, follow=silent)


def test_each_calibration_has_words_of_its_own(jobs: list[ReplayJob]) -> None:
    for salt in ("warm-up", "round 1"):
        calibrate(TARGETS["fcfs"], PROGRAMS, 2, 10, silent, salt=salt)
    assert [job.salt for job in jobs] == ["calibration:warm-up:1", "calibration:round 1:1"]
    assert set(jobs[0].arrivals_s) == {0.0}
    with pytest.raises(CalibrationError, match="no calls"):
        calibrate(TARGETS["fcfs"], [], 2, 10, silent, salt="none")


def test_few_programs_are_played_until_there_are_tokens_enough(jobs: list[ReplayJob]) -> None:
    tokens = sum(program.decode_tokens for program in PROGRAMS)
    titles: list[int] = []

    def follow(_title: str, calls: int) -> Callable[[CallResult], None]:
        titles.append(calls)
        return lambda _: None

    calibrate(TARGETS["fcfs"], PROGRAMS, 2, 2 * tokens + 1, follow, salt="few")
    assert [job.salt for job in jobs] == [f"calibration:few:{number}" for number in (1, 2, 3)]
    assert titles == [3 * sum(len(program.calls) for program in PROGRAMS)]
    jobs.clear()
    calibrate(TARGETS["fcfs"], PROGRAMS, 2, 10**9, silent, salt="never enough")
    assert len(jobs) == MOST_REPEATS
