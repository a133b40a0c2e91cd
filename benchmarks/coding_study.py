"""Simulates coding sessions at full length: the default beside others, with and without host memory.

    coding_study.py DATA

DATA/public has the sessions. They arrive at half, one and two times the rate that saturates each engine, and
in a closed loop; one, two and four engines, with the default balancer; host memory of 0 to 1 TB for each
engine. `fcfs` has the same host memory as the others, which is vLLM with its own KV offloading.

Runs go to a file, one line each, as in default_study.py: an interrupted study goes on, and tables are made
of the runs that there are. Each figure is the mean over seeds of the ratio to `fcfs` with the same programs
and arrivals, with the largest standard deviation. A cell is lost where another case betters the default by
more than two standard errors of their difference. Seeds 1 to 3 chose the rule, so 4 to 6 judge it.
OUT/coding.json has the same figures as the tables.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import CLOSED, COMPARED
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import load_programs
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.study_runs import BASE, Block, Cell, Pool, RunFile, run_blocks
from autellix_lab.workload.fit import Fit, GapRule

WORKLOAD = "coding"
FIT = Fit(max_context_tokens=131_072, gap_rule=GapRule(60.0))
"""Lengths as recorded, up to the models' context; gaps up to a minute."""
COUNT = 60
"""Programs of a run, for each engine."""
SATURATION = {
    "llama3.1-8b-h100": {0.0: 0.0043, 250.0: 0.0065, 500.0: 0.0070, 1000.0: 0.0070},
    "llama3.1-70b-4xa100": {0.0: 0.0018, 250.0: 0.0018, 500.0: 0.0026, 1000.0: 0.0030},
    "qwen3-30b-a3b-h100": {0.0: 0.0038, 250.0: 0.0064, 500.0: 0.0066, 1000.0: 0.0067},
}
"""Programs per second of an engine by preset and GB of host memory.

About what the default of 2026-11-27 finished in a closed loop of 16 with seed 1, and no less than with less
host memory. Fixed, so that rates do not change with the rule.
"""
LOADS = (0.5, 1.0, 2.0)
"""Multiples of SATURATION."""
PRESENT = (8, 16)
"""Programs that are always present, for each engine."""
ENGINES = (1, 2, 4)
HOSTS = (0.0, 250.0, 500.0, 1000.0)
SEEDS = (4, 5, 6)
DEFAULT = "default"
BASELINES = {"ThunderAgent": "thunderagent", "Continuum": "continuum", "llm-d": "llm-d"}
"""Other systems' schedulers, which are simulated for one engine."""
POLICIES = {BASE: "fcfs", DEFAULT: "boost", "plas": "plas"}
METRICS = (*COMPARED, "makespan_s")
CLOSED_METRICS = (*METRICS, "calls_per_min")
PLACE = ("engine", "engines", "host, GB", "load", "seeds")
"""Columns of a cell."""


def cases_of(engines: int) -> tuple[str, ...]:
    """Return the cases that are simulated for a number of engines."""
    return (*POLICIES, *BASELINES) if engines == 1 else tuple(POLICIES)


def cells_of(model: str, engines: int, host_gb: float) -> list[Cell]:
    """Return the open and closed cells of some engines."""
    loads = [("poisson", load) for load in LOADS] + [(CLOSED, float(engines * each)) for each in PRESENT]
    return [
        Cell(
            workload=WORKLOAD,
            arrivals=arrivals,
            load=load,
            gaps=str(FIT.gap_rule),
            model=model,
            engines=engines,
            host_gb=host_gb,
        )
        for arrivals, load in loads
    ]


def settings_of(cell: Cell, case: str) -> SimSettings:
    """Return a case's settings on the engines of a cell."""
    model = PRESETS[cell.model]
    if cell.host_gb:
        model = model.with_host(cell.host_gb)
    return SimSettings(
        model=model,
        scheduler=SchedulerConfig(policy=POLICIES.get(case, "fcfs")),
        baseline=BASELINES.get(case),
        engines=cell.engines,
    )


def pool_of(data: Path, scale: float) -> Callable[[Cell], Pool]:
    """Return a function that returns the programs of a cell."""
    programs = load_programs(data, WORKLOAD, {WORKLOAD: FIT})
    return lambda cell: Pool(
        programs,
        cell.engines * max(PRESENT[-1] + 1, round(scale * COUNT)),
        cell.engines * SATURATION[cell.model][cell.host_gb],
    )


# Tables.


def judged(cell: Cell) -> tuple[str, ...]:
    """Return the metrics that are compared in a cell."""
    return CLOSED_METRICS if cell.arrivals == CLOSED else METRICS


def rows_of(runs: RunFile, cells: Iterable[Cell]) -> list[dict[str, object]]:
    """Return the figures of each cell in which the default was run, as plain JSON values."""
    return [
        {
            "cell": asdict(cell),
            "cases": {
                case: {
                    "seeds": runs.seeds(cell, case),
                    "ratios": {name: runs.ratios(cell, case, (name,))[0].mean for name in judged(cell)},
                    "cached_share": _mean(runs, cell, case, "cached_share"),
                    "loaded_share": _mean(runs, cell, case, "loaded_share"),
                }
                for case in cases_of(cell.engines)
                if runs.seeds(cell, case)
            },
            "lost": lost(runs, cell),
        }
        for cell in cells
        if runs.seeds(cell, DEFAULT)
    ]


def lost(runs: RunFile, cell: Cell) -> dict[str, tuple[str, float]]:
    """Return the metrics in which another case is better than the default, the best one, and by what."""
    # Token latency is that of short programs alone; the rule is judged by what people wait for.
    found = runs.behind(cell, DEFAULT, judged(cell)[1:])
    return {name: next(iter(better.items())) for name, better in found.items()}


def tables(runs: RunFile, cells: Sequence[Cell]) -> list[str]:
    """Return the lost cells, then all."""
    made = [cell for cell in cells if runs.seeds(cell, DEFAULT)]
    lines = ["## Where the default is behind", ""]
    rows = [
        (
            *_place(runs, cell),
            ", ".join(f"{name} {factor:.2f} x {best}" for name, (best, factor) in found.items()),
        )
        for cell in made
        if (found := lost(runs, cell))
    ]
    lines += [
        f"{len(rows)} of {len(made)} cells have a figure that another case betters by more than its noise:",
        "",
    ]
    lines += [*markdown_table((*PLACE, "behind by"), rows), ""]
    for title, is_closed, names in (
        ("Open arrivals", False, "token latency, mean, p95, p99, makespan"),
        ("Closed loop", True, "token latency, mean, p95, p99, makespan, calls a minute"),
    ):
        lines += [f"## {title}", "", f"Ratios to `{BASE}`: {names}; then the cached share of prompts.", ""]
        for engines in ENGINES:
            shown = [c for c in made if c.engines == engines and (c.arrivals == CLOSED) is is_closed]
            cases = cases_of(engines)
            table = [(*_place(runs, cell), *(_figures(runs, cell, case) for case in cases)) for cell in shown]
            lines += [*markdown_table((*PLACE, *cases), table), ""] if table else []
    return lines


def _place(runs: RunFile, cell: Cell) -> tuple[object, ...]:
    load = f"{cell.load:g} present" if cell.arrivals == CLOSED else f"{cell.load:g}"
    return cell.model, cell.engines, f"{cell.host_gb:g}", load, len(runs.seeds(cell, DEFAULT))


def _figures(runs: RunFile, cell: Cell, case: str) -> str:
    if not runs.seeds(cell, case):
        return ""
    return f"{runs.figures(cell, case, judged(cell))}, {_mean(runs, cell, case, 'cached_share'):.0%}"


def _mean(runs: RunFile, cell: Cell, case: str, metric: str) -> float:
    seeds = runs.seeds(cell, case)
    return sum(runs.runs[cell, case, seed].metrics[metric] for seed in seeds) / len(seeds)


# Runs.


def main() -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--out", type=Path, default=Path("study-results"), help="folder of runs and JSON")
    parser.add_argument("--seconds", type=float, default=math.inf, help="make no further run after this time")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the programs of a run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--models", nargs="+", choices=tuple(SATURATION), default=tuple(SATURATION))
    parser.add_argument("--engines", nargs="+", type=int, choices=ENGINES, default=ENGINES)
    parser.add_argument("--hosts", nargs="+", type=float, choices=HOSTS, default=HOSTS, help="GB")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    arguments = parser.parse_args()
    scaled = "" if arguments.scale == 1 else f"-x{arguments.scale:g}"
    runs = RunFile(arguments.out / f"coding{scaled}.jsonl")
    make_runs(arguments, runs)
    every = [
        cell for n in ENGINES for host in HOSTS for model in SATURATION for cell in cells_of(model, n, host)
    ]
    rows = rows_of(runs, every)
    (arguments.out / f"coding{scaled}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    codes = ", ".join(runs.codes((DEFAULT,)))
    made = f"Made by `benchmarks/coding_study.py DATA` on {datetime.now(UTC):%Y-%m-%d}"
    print("\n".join([f"{made}; `boost` as of commit {codes}.", "", *tables(runs, every)]))


def make_runs(arguments: argparse.Namespace, runs: RunFile) -> None:
    """Make the chosen runs that the file lacks, fewer engines first, until the time is up."""
    blocks = [
        Block(cells=cells_of(model, engines, host_gb), cases=cases_of(engines), seeds=arguments.seeds)
        for engines in arguments.engines
        for host_gb in arguments.hosts
        for model in arguments.models
    ]
    found = run_blocks(
        blocks,
        runs,
        pool_of=pool_of(arguments.data, arguments.scale),
        settings_of=settings_of,
        workers=arguments.workers,
    )
    started_s = time.monotonic()
    for number, run in enumerate(found, 1):
        if number % 10 == 0:
            sys.stderr.write(f"{number} runs made; {run.cell}\n")
        if time.monotonic() - started_s > arguments.seconds:
            sys.stderr.write("not all runs are made: the same command goes on\n")
            return


if __name__ == "__main__":
    main()
