"""Run the same programs under several policies in turn, at several offered loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autellix_backend.bench.calibrate import (
    Calibration,
    CalibrationError,
    closed_loop,
    measure,
)
from autellix_backend.bench.metrics import outcomes, summarise
from autellix_backend.bench.replay import Job, replay
from autellix_backend.bench.report import LoadComparison, Run
from autellix_backend.bench.results import CallResult
from autellix_backend.workload.arrivals import all_at_once, poisson_arrivals
from autellix_backend.workload.schema import ProgramTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One offered load: `rho` times the engine's capacity, offered by these programs."""

    name: str
    rho: float
    programs: Sequence[ProgramTrace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A live backend."""

    base_url: str
    model: str


Follow = Callable[[str, int], Callable[[CallResult], None]]
"""Given a run's title and number of calls, returns what is told each result; for progress bars."""


def calibrate(
    target: Target, programs: Sequence[ProgramTrace], slots: int, tokens: int, follow: Follow
) -> Calibration:
    """Measure a backend's speed with the batch full.

    Raises:
        ReplayError, CalibrationError: if there is nothing to measure.
    """
    lanes = closed_loop(programs, slots, tokens)
    if not lanes:
        raise CalibrationError("there are no calls to calibrate with")
    watch = follow("calibration", sum(len(lane.calls) for lane in lanes))
    job = Job(
        base_url=target.base_url,
        model=target.model,
        programs=lanes,
        arrivals_s=all_at_once(len(lanes)),
        salt="calibration",
    )
    return measure(replay(job, watch))


def compare(
    targets: Mapping[str, Target],
    loads: Sequence[Load],
    measure_speed: Callable[[], Calibration],
    *,
    rounds: int,
    seed: int,
    follow: Follow,
) -> list[LoadComparison]:
    """Play every load on every target, policies taking turns (A B A B), one at a time.

    The speed is measured anew before each turn of all policies: a machine that has become slower or faster
    since is offered the load that its speed of now makes of rho.

    Raises:
        ReplayError: if the client could not play at all.
        CalibrationError: if a speed cannot be measured.
    """
    found = [LoadComparison(name=load.name, rho=load.rho, policies=tuple(targets)) for load in loads]
    for round_number in range(1, rounds + 1):
        for load, comparison in zip(loads, found, strict=True):
            speed = measure_speed()
            arrivals_s = poisson_arrivals(len(load.programs), speed.rate_for(load.rho, load.programs), seed)
            for policy, target in targets.items():
                title = f"round {round_number}, {load.name}, {policy}"
                results = _play(target, load, arrivals_s, f"{seed}:{load.name}:{round_number}", follow, title)
                comparison.runs.append(
                    Run(
                        policy=policy,
                        round_number=round_number,
                        summary=summarise(load.programs, arrivals_s, results),
                        outcomes=outcomes(load.programs, arrivals_s, results),
                        capacity_tokens_per_s=speed.tokens_per_s,
                    )
                )
    return found


def _play(
    target: Target, load: Load, arrivals_s: Sequence[float], salt: str, follow: Follow, title: str
) -> list[CallResult]:
    job = Job(
        base_url=target.base_url, model=target.model, programs=load.programs, arrivals_s=arrivals_s, salt=salt
    )
    return replay(job, follow(title, sum(len(program.calls) for program in load.programs)))
