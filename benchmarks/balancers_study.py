"""Simulates balancers of other routers beside ours, before plain engines and before ours.

    balancers_study.py DATA [--out DIR] [--cells tools-half-2 ...]

Plain engines run `fcfs`, ours `boost` with working-set admission. Coding sessions at full length on 70B
engines, at twice the rate that saturates them (coding_study.py); programs with tools on 8B engines with a
part of their KV memory, at load 1.3 (default_study.py). Figures are ratios to plain engines behind
`round_robin`, seed by seed: mean and p95 of program latency with the larger standard deviation over the
seeds, which chose no rule; then the share of prompts found in a cache.

Runs go to a file, one line each: an interrupted study goes on, and the table is made of the runs that the
file has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import coding_study
from study_cases import COUNTS, engine

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.baselines.balancers import RIVAL_BALANCER_NAMES
from autellix_lab.sim.experiment import COMPARED
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import load_programs
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.study_runs import Block, Cell, Pool, RunFile, run_blocks

PLAIN, OURS = "plain", "ours"
POLICIES = {PLAIN: "fcfs", OURS: "boost"}
BALANCERS = ("round_robin", "least_used", *RIVAL_BALANCER_NAMES, "working_set")
CASES = tuple(f"{engines} {balancer}" for engines in POLICIES for balancer in BALANCERS)
BASE, DEFAULT = CASES[0], CASES[-1]
METRICS = (*COMPARED, "makespan_s")
MEAN, P95 = COMPARED[1:3]
CODING_MODEL = "llama3.1-70b-4xa100"
CODING_SCALE = 0.3
"""Of the programs of coding_study.py: 18 sessions for each engine."""
SEEDS = (4, 5, 6)


def _tools(kv_share: float, engines: int) -> Cell:
    return Cell(workload="tools", kv_share=kv_share, load=1.3, engines=engines)


def _coding(engines: int) -> Cell:
    gaps = str(coding_study.FIT.gap_rule)
    return Cell(workload="coding", load=2.0, gaps=gaps, model=CODING_MODEL, engines=engines)


CELLS = {
    "tools-half-2": _tools(0.5, 2),
    "tools-quarter-4": _tools(0.25, 4),
    "coding-2": _coding(2),
    "tools-half-4": _tools(0.5, 4),
    "tools-quarter-2": _tools(0.25, 2),
    "coding-4": _coding(4),
}


def settings_of(cell: Cell, case: str) -> SimSettings:
    """Return a case's settings on the engines of a cell, with all of their memory."""
    engines, balancer = case.split()
    return SimSettings(
        model=PRESETS[cell.model] if cell.model else engine(cell.workload),
        scheduler=SchedulerConfig(policy=POLICIES[engines]),
        engines=cell.engines,
        balancer=balancer,
    )


def pool_of(data: Path) -> Callable[[Cell], Pool]:
    """Return a function that returns the programs of a cell."""
    coding = coding_study.pool_of(data, CODING_SCALE)
    tools = load_programs(data, "tools")
    return lambda cell: coding(cell) if cell.model else Pool(tools, cell.engines * COUNTS["tools"])


def tables(runs: RunFile) -> list[str]:
    """Return the table of all cells that have runs, and what betters the default in them."""
    made = {title: cell for title, cell in CELLS.items() if runs.seeds(cell, BASE)}
    seeds = (f"{title}, {len(runs.seeds(cell, BASE))} seeds" for title, cell in made.items())
    rows = [(*case.split(), *(_figures(runs, cell, case) for cell in made.values())) for case in CASES]
    lines = [*markdown_table(("engines", "balancer", *seeds), rows), "", "Better than the default:", ""]
    for title, cell in made.items():
        for metric, better in runs.behind(cell, DEFAULT, METRICS).items():
            lines += [f"- {title}, {metric}: {case} by {factor:.2f}" for case, factor in better.items()]
    return lines


def _figures(runs: RunFile, cell: Cell, case: str) -> str:
    seeds = runs.seeds(cell, case)
    if not seeds:
        return ""
    found = fmean(runs.runs[cell, case, seed].metrics["cached_share"] for seed in seeds)
    return f"{runs.figures(cell, case, (MEAN, P95))}, {found:.0%}"


def main() -> None:
    """Make the runs that the file lacks, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--out", type=Path, default=Path("study-results"), help="folder of the runs")
    parser.add_argument("--cells", nargs="+", choices=tuple(CELLS), default=tuple(CELLS))
    parser.add_argument("--balancers", nargs="+", choices=BALANCERS, default=BALANCERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--tables", action="store_true", help="make no run")
    arguments = parser.parse_args()
    runs = RunFile(arguments.out / "balancers.jsonl", base=BASE)
    blocks = [
        Block(cells=[CELLS[name]], cases=[case], seeds=[seed])
        for seed in arguments.seeds
        for name in arguments.cells
        for case in CASES
        if case == BASE or case.split()[1] in arguments.balancers
    ]
    if not arguments.tables:
        for run in run_blocks(blocks, runs, pool_of=pool_of(arguments.data), settings_of=settings_of):
            sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {run.cell.workload} {run.case} {run.seed}\n")
    print("\n".join([f"`boost` as of commit {', '.join(runs.codes((DEFAULT,)))}.", "", *tables(runs)]))


if __name__ == "__main__":
    main()
