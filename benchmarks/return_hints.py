"""Simulates programs of which one half states when its next calls will come: truly, falsely, or not at all.

Coding sessions and agents with tools, by Poisson arrivals, on an engine with a part of its KV memory. Both
halves are of one class. Figures of each half: the mean program latency (min), below the first case as a ratio
to it, and the share of prompt tokens found in the cache.

    return_hints.py [--seeds 3] [--engine llama3.1-8b-h100] [--workloads coding tools]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import DRAWN_GAPS
from autellix_lab.sim.results import ProgramRecord
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import RECORDED_GAPS, Fit, apply_fit, draw_gaps
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.statistics import confidence_interval
from autellix_lab.workload.trace import CallTrace, ProgramTrace

TRUE, NOTHING, SECOND, HOUR = "the true time", "nothing", "always a second", "always an hour"
STATED_S = {NOTHING: None, SECOND: 1.0, HOUR: 3600.0}
CASES = ((NOTHING, NOTHING), (TRUE, NOTHING), (SECOND, NOTHING), (HOUR, NOTHING), (TRUE, TRUE))
"""What senders state, and what the others do."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs of one kind, and the engine's memory that they get."""

    count: int
    rate: float
    """Programs per second."""
    kv_share: float


WORKLOADS = {"coding": Workload(24, 0.01, 0.5), "tools": Workload(100, 1.0, 0.1)}
FIT = Fit(max_context_tokens=131_072, gap_rule=RECORDED_GAPS)


def programs_of(kind: str, seed: int) -> list[ProgramTrace]:
    """Return the programs of a workload, all of one class."""
    count = WORKLOADS[kind].count
    if kind == "coding":
        return [apply_fit(program, FIT) for program in generate_programs("coding", count, seed)]
    return [draw_gaps(program, DRAWN_GAPS["tools"]) for program in generate_programs("react", count, seed)]


def senders_of(programs: Sequence[ProgramTrace], seed: int) -> frozenset[str]:
    """Return the ids of the half that states something."""
    return frozenset(random.Random(seed).sample([each.program_id for each in programs], len(programs) // 2))


def gaps_after(program: ProgramTrace) -> Mapping[int, float]:
    """Return the time (s) to the next call after each call that has one."""
    gaps: dict[int, float] = {}
    for call in program.calls:
        for parent in call.parents:
            gaps[parent] = min(gaps.get(parent, math.inf), call.gap_before_s or 0.0)
    return gaps


def statements(
    programs: Sequence[ProgramTrace], senders: frozenset[str], case: tuple[str, str]
) -> Callable[[ProgramTrace, CallTrace], float | None]:
    """Return what the simulation asks for each call; the last call of a program states nothing."""
    gaps = {program.program_id: gaps_after(program) for program in programs}

    def stated(program: ProgramTrace, call: CallTrace) -> float | None:
        what = case[program.program_id not in senders]
        gap_s = gaps[program.program_id].get(call.id)
        return gap_s if what == TRUE or gap_s is None else STATED_S[what]

    return stated


def found_share(records: Sequence[ProgramRecord]) -> float:
    """Return the share of prompt tokens that calls found in the cache."""
    return sum(each.cached_tokens for each in records) / sum(each.prompt_tokens for each in records)


def figures_of(kind: str, seed: int, settings: SimSettings) -> list[tuple[float, float, float, float]]:
    """Return the figures of both halves in each case, with a seed."""
    programs = programs_of(kind, seed)
    senders = senders_of(programs, seed)
    arrivals = list(zip(poisson_arrivals(len(programs), WORKLOADS[kind].rate, seed), programs, strict=True))
    unit = (60.0, 60.0)
    rows = []
    for case in CASES:
        told = replace(settings, expected_returns=statements(programs, senders, case))
        records = simulate(arrivals, told).programs
        stating = [each for each in records if each.program_id in senders]
        others = [each for each in records if each.program_id not in senders]
        latency_s = fmean(each.latency_s for each in stating), fmean(each.latency_s for each in others)
        ratios = latency_s[0] / unit[0], latency_s[1] / unit[1]
        rows.append((*ratios, found_share(stating), found_share(others)))
        if case == (NOTHING, NOTHING):
            unit = latency_s
    return rows


TITLES = ("programs", "senders state", "others", "senders", "others", "senders found", "others found")


def main() -> None:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="llama3.1-8b-h100", choices=tuple(PRESETS))
    parser.add_argument("--workloads", nargs="+", default=tuple(WORKLOADS), choices=tuple(WORKLOADS))
    arguments = parser.parse_args()
    rows = []
    for kind in arguments.workloads:
        model = PRESETS[arguments.engine]
        model = replace(model, kv_blocks=round(WORKLOADS[kind].kv_share * (model.kv_blocks or 0)))
        settings = SimSettings(model=model, scheduler=SchedulerConfig())
        seeds = [figures_of(kind, seed, settings) for seed in range(arguments.seeds)]
        for case, *found in zip(CASES, *seeds, strict=True):
            cells = [format_interval(confidence_interval(values), 2) for values in zip(*found, strict=True)]
            rows.append((kind, *case, *cells))
            print(rows[-1], flush=True)
    print("\n".join(markdown_table(TITLES, rows)))


if __name__ == "__main__":
    main()
