"""Simulates the default scheduler beside others, over loads, KV memory, shared prefixes and gaps.

    boost_study.py DATA                                  the families on the traces in DATA/public
    boost_study.py DATA --workloads tau_airline,whowhen  held-out sources, for which no constant was chosen
    boost_study.py DATA --gaps 60                        recorded gaps, at most 60 s, in place of none

Figures are the mean over seeds of the ratio to `fcfs` of the same programs and arrivals: token latency, then
mean, p95 and p99 of program latency. Constants of `boost` were chosen on seeds 0 to 4 of the families, and on
nothing else. Cells in which the default loses come first. Writes JSON and a page of tables.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.recording.trace import ProgramTrace
from autellix_lab.sim.baselines import BASELINE_NAMES
from autellix_lab.sim.experiment import COMPARED, Sweep, SweepResult, run_sweep
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import (
    FAMILIES,
    FEW_SLOTS,
    HELD_OUT,
    Chapter,
    fit_note,
    fits_with,
    study_parser,
    study_workloads,
)
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.workload.fit import NO_GAPS, GapRule

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
COUNTS = {"chat": 200, "tools": 150, "mixed": 60, "coding": 30, "tree": 12}
HELD_OUT_COUNTS = {"tot_game24": 40, "lats_humaneval": 40, "sharegpt_zh": 200}
HELD_OUT_COUNT = 60
LOADS = (0.5, 0.8, 1.0, 1.3, 1.6)
KV_SHARES = (1.0, 0.5, 0.25)
DEFAULT, KNOWN = "default", "sizes known"
LOST = 1.03
"""A ratio above it counts as lost."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The KV memory of a cell: its share of the preset's, and whether programs share system prefixes."""

    kv_share: float
    shares_prefixes: bool

    def __str__(self) -> str:
        return f"KV {self.kv_share:g}, {'shared' if self.shares_prefixes else 'private'} prefixes"


def schedulers() -> dict[str, SimSettings]:
    """Return the compared schedulers by name; the first is the base of all ratios."""
    default = settings(policy="boost", admission="working_set")
    cases = {
        "fcfs": settings(policy="fcfs"),
        "plas": settings(policy="plas", preemption="always"),
        "plas, priced": settings(policy="plas"),
        "atlas, priced": settings(policy="atlas"),
        "srpt (clairvoyant)": settings(policy="srpt", beta=math.inf),
        "admission alone": settings(policy="fcfs", admission="working_set"),
        DEFAULT: default,
        KNOWN: replace(default, knows_sizes=True),
    }
    return cases | {name: replace(settings(policy="fcfs"), baseline=name) for name in BASELINE_NAMES}


def settings(**changes: Any) -> SimSettings:
    """Return the simulated engine under a scheduler without admission, with these changes."""
    scheduler = SchedulerConfig(**({"admission": "none"} | changes))
    return SimSettings(model=replace(PRESET, max_num_seqs=SLOTS), scheduler=scheduler)


def cells_of(
    workload: str, programs: Sequence[ProgramTrace], count: int, arguments: argparse.Namespace
) -> dict[Memory, SweepResult]:
    """Simulate a workload with each memory."""
    has_prefixes = any(program.system_prefix_tokens for program in programs)
    found: dict[Memory, SweepResult] = {}
    for kv_share in arguments.kv:
        for shares_prefixes in (True, False) if has_prefixes else (True,):
            memory = Memory(kv_share, shares_prefixes)
            cases = {
                name: replace(
                    case,
                    model=replace(case.model, max_num_seqs=FEW_SLOTS.get(workload, SLOTS)).with_kv(kv_share),
                    shares_prefixes=shares_prefixes,
                )
                for name, case in schedulers().items()
                if arguments.cases is None or name in ("fcfs", DEFAULT, *arguments.cases)
            }
            seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            sweep = Sweep(programs=programs, count=count, cases=cases, loads=arguments.loads, seeds=seeds)
            found[memory] = run_sweep(sweep, workers=arguments.workers)
    return found


def ratios_of(result: SweepResult, case: str, load: float) -> list[float]:
    """Return a case's four ratios to `fcfs`."""
    return [interval.mean for interval in result.ratios(case, "fcfs", load).values()]


def closed_gap(result: SweepResult, load: float) -> float:
    """Return how much of the gap between `fcfs` and known sizes the default closes, in mean latency."""
    default, known = (ratios_of(result, case, load)[1] for case in (DEFAULT, KNOWN))
    return (1 - default) / (1 - known) if known < 1 else math.nan


def page(
    workload: str, cells: Mapping[Memory, SweepResult], loads: Sequence[float], count: int, note: str
) -> list[str]:
    """Return one workload's tables, the cells that the default loses first."""
    lost = [
        f"load {load:g}, {memory}: {shown(ratios_of(result, DEFAULT, load))}"
        for memory, result in cells.items()
        for load in loads
        if max(ratios_of(result, DEFAULT, load)) > LOST
    ]
    total = len(cells) * len(loads)
    lines = [f"## {workload}", "", f"{count} programs per run, {note}.", ""]
    lines += [f"The default loses more than {LOST - 1:.0%} in {len(lost)} of {total} cells.", ""]
    lines += [f"- {cell}" for cell in lost] + ([""] if lost else [])
    for memory, result in cells.items():
        cases = [case for case in dict.fromkeys(point.case for point in result.points) if case != "fcfs"]
        rows = [[case, *(shown(ratios_of(result, case, load)) for load in loads)] for case in cases]
        base = [f"{result.interval('fcfs', load, COMPARED[1]).mean:.3g} s" for load in loads]
        rows.append(["mean latency of fcfs", *base])
        lines += [f"**{memory}**", ""]
        lines += [*markdown_table(["scheduler", *(f"load {load:g}" for load in loads)], rows), ""]
    return lines


def shown(ratios: Sequence[float]) -> str:
    """Write ratios as `token/mean/p95/p99`."""
    return "/".join(f"{ratio:.2f}" for ratio in ratios)


def main() -> None:
    """Run the study."""
    parser = study_parser(__doc__, (*FAMILIES, "mixed"))
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--loads", type=_numbers, default=LOADS)
    parser.add_argument("--kv", type=_numbers, default=KV_SHARES, help="shares of the preset's KV memory")
    parser.add_argument("--cases", type=lambda text: text.split(","), help="schedulers beside the default")
    parser.add_argument("--gaps", type=float, default=0.0, help="longest recorded gap (s) that is played")
    parser.add_argument("--name", default="boost", help="of the files")
    arguments = parser.parse_args()
    fits = fits_with(GapRule(arguments.gaps) if arguments.gaps else NO_GAPS)

    def chapter(workload: str, programs: Sequence[ProgramTrace], count: int) -> Chapter:
        cells = cells_of(workload, programs, count, arguments)
        rows = {
            str(memory): {
                f"{load:g}": {
                    case: ratios_of(result, case, load)
                    for case in dict.fromkeys(point.case for point in result.points)
                }
                for load in arguments.loads
            }
            for memory, result in cells.items()
        }
        lines = page(workload, cells, arguments.loads, count, fit_note(workload, fits))
        return Chapter(rows, lines)

    counts = dict.fromkeys(HELD_OUT, HELD_OUT_COUNT) | HELD_OUT_COUNTS | COUNTS
    study_workloads(arguments, arguments.name, counts, chapter, fits=fits)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(item) for item in text.split(","))


if __name__ == "__main__":
    main()
