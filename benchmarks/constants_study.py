"""Leaves one family of programs out: are the two tuned constants of `boost` those that the others choose?

    constants_study.py DATA --page docs/results/default.md

The strength (as a share of the mean response time) and the weight of an output token are chosen on four
families with seeds 0 to 2, by the least score, and judged on the fifth with seeds 5 to 7. The score is the
geometric mean of the ratios to `fcfs` of token latency and of mean, p95 and p99 of program latency, over the
loads. Runs are kept as in boost_study.py.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from autellix_backend.core import boost
from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import COMPARED
from autellix_lab.sim.markdown import markdown_table, write_part
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import FAMILIES, FEW_SLOTS, load_programs
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.study_runs import BASE, Block, Cell, Pool, RunFile, cells_of, run_blocks

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
ALL = (*FAMILIES, "mixed")
COUNTS = {"chat": 200, "tools": 150, "mixed": 60, "coding": 30, "tree": 12}
LOADS = (1.3,)
CHOOSING, JUDGING = range(3), range(5, 8)

Constants = tuple[float, float]
"""Strength and weight."""
OURS: Constants = (SchedulerConfig().boost, boost.OUTPUT_WEIGHT)
GRID: tuple[Constants, ...] = (OURS, (0.35, 32.0), (1.4, 32.0), (0.7, 8.0), (0.7, 128.0))


def case_of(constants: Constants) -> str:
    """Return the name of these constants."""
    return "{:g} R, {:g}".format(*constants)


def settings_of(cell: Cell, case: str) -> SimSettings:
    """Return the settings of a case; the weight is set by the caller."""
    slots = FEW_SLOTS.get(cell.workload, SLOTS)
    model = replace(PRESET, max_num_seqs=slots)
    if case == BASE:
        return SimSettings(model=model, scheduler=SchedulerConfig(policy="fcfs"))
    strength = float(case.partition(" ")[0])
    return SimSettings(model=model, scheduler=SchedulerConfig(policy="boost", boost=strength))


def log_score(runs: RunFile, workloads: Iterable[str], constants: Constants, seeds: Iterable[int]) -> float:
    """Return the logarithm of the score."""
    ratios = [
        interval.mean
        for cell in cells_of(workloads, LOADS)
        for interval in runs.ratios(cell, case_of(constants), COMPARED, seeds)
    ]
    return fmean(map(math.log, ratios))


def tables(runs: RunFile, for_page: bool) -> list[str]:
    """Return one line for each family that was left out; all scores follow, but not on a page."""
    rows = []
    for left_out in ALL:
        others = [name for name in ALL if name != left_out]
        chosen = min(GRID, key=lambda item: log_score(runs, others, item, CHOOSING))
        best = min(GRID, key=lambda item: log_score(runs, (left_out,), item, JUDGING))
        scores = [math.exp(log_score(runs, (left_out,), item, JUDGING)) for item in (chosen, best, OURS)]
        loss, ours = (f"{scores[0] / score - 1:+.1%}" for score in scores[1:])
        rows.append(
            (
                left_out,
                case_of(chosen),
                f"{scores[0]:.3f}",
                f"{case_of(best)}: {scores[1]:.3f}",
                loss,
                f"{scores[2]:.3f}",
                ours,
            )
        )
    header = ("left out", "chosen by the others", "score", "best", "loss", "ours", "loss against ours")
    if for_page:
        return markdown_table(header, rows)
    by_family = [
        (case_of(item), *(f"{math.exp(log_score(runs, (name,), item, JUDGING)):.3f}" for name in ALL))
        for item in GRID
    ]
    return [
        *markdown_table(header, rows),
        "",
        "All scores, seeds 5 to 7:",
        "",
        *markdown_table(("strength, weight", *ALL), by_family),
    ]


def main() -> None:
    """Run the study and write its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--page", type=Path, help="page whose tables are replaced; default: they are printed")
    parser.add_argument("--out", type=Path, default=Path("study-results"), help="folder of the runs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="make no further run after this time")
    arguments = parser.parse_args()
    runs = RunFile(arguments.out / "boost-constants.jsonl")
    pools = {name: Pool(load_programs(arguments.data, name), COUNTS[name]) for name in ALL}
    started_s = time.monotonic()
    for constants in GRID:
        # The weight is a constant of the module, not a setting: hence no other processes.
        boost.OUTPUT_WEIGHT = constants[1]
        cases = (BASE, case_of(constants))
        block = Block(cells=cells_of(ALL, LOADS), cases=cases, seeds=(*CHOOSING, *JUDGING))
        for _ in run_blocks(
            [block], runs, pool_of=lambda cell: pools[cell.workload], settings_of=settings_of
        ):
            if time.monotonic() - started_s > arguments.seconds:
                sys.exit("not all runs are made: the same command goes on")
    codes = ", ".join(runs.codes(map(case_of, GRID)))
    lines = [
        f"Made by `benchmarks/constants_study.py DATA`, commit {codes}.",
        "",
        *tables(runs, arguments.page is not None),
    ]
    if arguments.page is None:
        print("\n".join(lines))
    else:
        write_part(arguments.page, "constants", lines)


if __name__ == "__main__":
    main()
