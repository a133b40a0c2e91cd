"""Run the same programs under several policies in turn, at several offered loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autellix_lab.bench.calibrate import Calibration, CalibrationError, measure, sample
from autellix_lab.bench.metrics import outcomes, summarise
from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.bench.report import LoadComparison, Run
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.arrivals import all_at_once, poisson_arrivals
from autellix_lab.workload.trace import ProgramTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One offered load: `rho` times the engine's capacity, offered by these programs."""

    name: str
    rho: float
    programs: Sequence[ProgramTrace]
    parts: int = 1
    """The number of parts into which the programs are split; the policies alternate at each part. The shorter
    a part, the less the machine's speed changes between policies."""

    def split(self) -> list[Sequence[ProgramTrace]]:
        """Return the parts, in order; none is empty."""
        size = math.ceil(len(self.programs) / self.parts)
        return [self.programs[first : first + size] for first in range(0, len(self.programs), size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A live backend."""

    base_url: str
    model: str


Follow = Callable[[str, int], Callable[[CallResult], None]]
"""Starts a progress bar with a run's title and number of calls; returns a function that receives results."""


def calibrate(
    target: Target, programs: Sequence[ProgramTrace], slots: int, tokens: int, follow: Follow, *, salt: str
) -> Calibration:
    """Measure a backend's speed with the batch full.

    Args:
        tokens: Least number of generated tokens.
        salt: Different for every measurement on a backend, so that no prompt is in its prefix cache.

    Raises:
        ReplayError, CalibrationError: if there is nothing to measure.
    """
    chosen = sample(programs, slots, tokens)
    if not chosen:
        raise CalibrationError("there are no calls to calibrate with")
    watch = follow("calibration", sum(len(program.calls) for program in chosen))
    job = ReplayJob(
        base_url=target.base_url,
        model=target.model,
        programs=chosen,
        arrivals_s=all_at_once(len(chosen)),
        salt=f"calibration:{salt}",
    )
    return measure(replay(job, watch), slots)


def compare(
    targets: Mapping[str, Target],
    loads: Sequence[Load],
    measure_speed: Callable[[str], Calibration],
    *,
    rounds: int,
    seed: int,
    follow: Follow,
) -> list[LoadComparison]:
    """Play every load on every target, one at a time, with alternating policies (A B A B).

    The speed is measured in each round, so that rho refers to the machine's current speed. `measure_speed`
    receives a name for the round.

    Raises:
        ReplayError: if the client could not play at all.
        CalibrationError: if a speed cannot be measured.
    """
    found = [LoadComparison(name=load.name, rho=load.rho, policies=tuple(targets)) for load in loads]
    for round_number in range(1, rounds + 1):
        speed = measure_speed(f"round {round_number}")
        for load, comparison in zip(loads, found, strict=True):
            turns = _play_in_turns(targets, load, speed, seed, round_number, follow)
            for policy, turn in turns.items():
                comparison.runs.append(
                    Run(
                        policy=policy,
                        round_number=round_number,
                        summary=summarise(load.programs, turn.arrivals_s, turn.results),
                        outcomes=outcomes(load.programs, turn.arrivals_s, turn.results),
                        capacity_tokens_per_s=speed.tokens_per_s,
                    )
                )
    return found


@dataclass(slots=True)
class _Played:
    """One policy's results of a load, part after part on one time line (s)."""

    arrivals_s: list[float] = field(default_factory=list)
    results: list[CallResult] = field(default_factory=list)

    def add(self, arrivals_s: Sequence[float], results: Sequence[CallResult]) -> None:
        """Append a part after the end of the last one."""
        start_s = max((result.finish_s for result in self.results), default=0.0)
        self.arrivals_s += [start_s + arrival_s for arrival_s in arrivals_s]
        self.results += [
            replace(result, submit_s=start_s + result.submit_s, finish_s=start_s + result.finish_s)
            for result in results
        ]


def _play_in_turns(
    targets: Mapping[str, Target],
    load: Load,
    speed: Calibration,
    seed: int,
    round_number: int,
    follow: Follow,
) -> dict[str, _Played]:
    played = {policy: _Played() for policy in targets}
    rate_per_s = speed.rate_for(load.rho, load.programs)
    for number, programs in enumerate(load.split()):
        arrivals_s = poisson_arrivals(len(programs), rate_per_s, seed + number)
        calls = sum(len(program.calls) for program in programs)
        part = f", part {number + 1} of {load.parts}" if load.parts > 1 else ""
        for policy, target in targets.items():
            job = ReplayJob(
                base_url=target.base_url,
                model=target.model,
                programs=programs,
                arrivals_s=arrivals_s,
                salt=f"{seed}:{load.name}:{round_number}",
            )
            watch = follow(f"round {round_number}, {load.name}{part}, {policy}", calls)
            played[policy].add(arrivals_s, replay(job, watch))
    return played
