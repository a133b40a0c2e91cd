"""Run the same programs under several policies in turn, at an offered load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autellix_lab.bench.calibrate import Calibration, CalibrationError, measure, pooled, sample
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

    @property
    def calls(self) -> int:
        """The calls of all programs."""
        return sum(len(program.calls) for program in self.programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A live backend."""

    base_url: str
    model: str
    engine_url: str | None = None
    """The vLLM server that answers, whose steps are counted; None for one that cannot be asked."""


Follow = Callable[[str, int], Callable[[CallResult], None]]
"""Starts a progress bar with a run's title and number of calls; returns a function that receives results."""


MOST_REPEATS = 10
"""Programs with few tokens, such as those of a classifier, would else be played hundreds of times."""


def calibrate(
    target: Target,
    programs: Sequence[ProgramTrace],
    slots: int,
    tokens: int,
    follow: Follow,
    *,
    salt: str,
) -> Calibration:
    """Measure a backend's speed with the batch full.

    Few programs are played again, with other words, until there are tokens enough, but ten times at most: the
    load of a comparison is as exact as this speed.

    Args:
        target: The backend.
        programs: Those that may be played.
        slots: Batch slots.
        tokens: Least number of generated tokens.
        follow: Follows the run.
        salt: Different for every measurement on a backend, so that no prompt is in its prefix cache.

    Raises:
        ReplayError, CalibrationError: if there is nothing to measure.
    """
    chosen = sample(programs, slots, tokens)
    if not chosen:
        raise CalibrationError("there are no calls to calibrate with")
    generated = max(1, sum(program.decode_tokens for program in chosen))
    repeats = max(1, min(MOST_REPEATS, math.ceil(tokens / generated)))
    watch = follow("calibration", repeats * sum(len(program.calls) for program in chosen))
    found = []
    for number in range(1, repeats + 1):
        job = ReplayJob(
            base_url=target.base_url,
            model=target.model,
            programs=chosen,
            arrivals_s=all_at_once(len(chosen)),
            salt=f"calibration:{salt}:{number}",
            engine_url=target.engine_url,
        )
        found.append(measure(replay(job, watch), slots))
    return pooled(found)


def compare(
    targets: Mapping[str, Target],
    load: Load,
    speed: Calibration,
    *,
    rounds: int,
    seed: int,
    follow: Follow,
) -> LoadComparison:
    """Play a load on every target, one at a time, in the other order in every second round (A B B A).

    Rounds draw their own arrivals. Arrivals and gaps are steps of the engine that serves them, by the speed
    that was measured once: a machine that is slower in some turns makes as many.

    Raises:
        ReplayError: if the client could not play at all.
        CalibrationError: if the speed was measured without a count of steps.
    """
    if math.isinf(speed.step_s):
        raise CalibrationError(f"{load.name}: the engine's steps were not counted")
    found = LoadComparison(name=load.name, rho=load.rho, policies=tuple(targets))
    rate_per_s = speed.rate_for(load.rho, load.programs)
    for round_number in range(1, rounds + 1):
        arrivals_s = poisson_arrivals(len(load.programs), rate_per_s, seed + round_number - 1)
        turns = list(targets.items())
        for policy, target in turns if round_number % 2 else reversed(turns):
            job = ReplayJob(
                base_url=target.base_url,
                model=target.model,
                programs=load.programs,
                arrivals_s=arrivals_s,
                salt=f"{seed}:{load.name}:{round_number}",
                engine_url=target.engine_url,
                step_s=speed.step_s,
            )
            results = replay(
                job, follow(f"{load.name}, round {round_number} of {rounds}, {policy}", load.calls)
            )
            found.runs.append(
                Run(
                    policy=policy,
                    round_number=round_number,
                    summary=summarise(load.programs, None, results),
                    outcomes=outcomes(load.programs, None, results),
                )
            )
    return found
