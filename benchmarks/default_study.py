"""Simulates the default scheduler beside others on recorded programs, and judges its two tuned constants.

    default_study.py table DATA      families and held-out sources, over loads, KV memory and shared prefixes
    default_study.py constants DATA  each family left out in turn
    default_study.py gaps DATA       times of tools and people between calls
    default_study.py offline DATA    all programs at time zero
    default_study.py clients DATA    clients that send no identity, or announce no ends

DATA/public has the traces. Runs go to a file, one line each; runs that it has are not made again, so that an
interrupted study goes on. Each figure is the mean over seeds of the ratio to `fcfs` with the same programs
and arrivals, with the largest standard deviation; a loss is one beyond two standard errors. All tables have
seeds 4 to 9. The constants of `boost` were chosen on seeds 0 to 4 of the families and on nothing else, those
of idle contexts on seeds 0 to 3 of coding sessions.

`constants`: the strength (as a share of the mean response time) and the weight of an output token are chosen
on four families with seeds 0 to 2, by the least score, and judged on the fifth with seeds 4 to 9. The score
is the geometric mean of the ratios of token latency and of mean, p95 and p99 of program latency.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import fmean

from autellix_backend.core import boost
from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import BURST_PROGRAMS, COMPARED
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import (
    DRAWN_GAPS,
    FAMILIES,
    FEW_SLOTS,
    FITS,
    HELD_OUT,
    LEAST_PROGRAMS,
    load_programs,
)
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.study_runs import (
    BASE,
    Block,
    Cell,
    Pool,
    RunFile,
    cells_of,
    exceeds_noise,
    run_blocks,
)
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.fit import GapRule, draw_gaps

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
ALL = (*FAMILIES, "mixed")
WITH_PREFIXES = ("tools", "mixed", "coding")
COUNTS = {"chat": 200, "tools": 150, "mixed": 60, "coding": 30, "tree": 12}
HELD_OUT_COUNTS = {"tot_game24": 40, "lats_humaneval": 40, "sharegpt_zh": 200}
HELD_OUT_COUNT = 60
GAP_COUNTS = {"coding": 120, "tools": 300, "chat": 400}
KV_SHARES = (1.0, 0.5, 0.25)
JUDGING = range(4, 10)
"""Seeds of all tables."""
DEFAULT, HINTED = "default", "sizes hinted"
PROPORTIONAL, DRAWN = "recorded x 0.02", "drawn"
_PRIVATE = ", private"
"""How the memory of a cell ends whose programs share no prefixes."""


def _settings(**changes: object) -> SimSettings:
    """Return the simulated engine under a scheduler without admission, with these changes."""
    fields = {"admission": "none"} | changes
    return SimSettings(model=replace(PRESET, max_num_seqs=SLOTS), scheduler=SchedulerConfig(**fields))  # type: ignore[arg-type]


_OURS = _settings(policy="boost", admission="working_set")
_FCFS = _settings(policy="fcfs")
CASES = {
    BASE: _FCFS,
    DEFAULT: _OURS,
    HINTED: replace(_OURS, hint_sigma=0.5),
    "plas": _settings(policy="plas", preemption="always"),
    "atlas": _settings(policy="atlas", preemption="always"),
    "plas priced": _settings(policy="plas"),
    "mlfq": _settings(policy="mlfq", preemption="always"),
    "srpt": _settings(policy="srpt", beta=math.inf),
    "ThunderAgent": replace(_FCFS, baseline="thunderagent"),
    "Continuum": replace(_FCFS, baseline="continuum"),
    "llm-d": replace(_FCFS, baseline="llm-d"),
    "no identity": replace(_OURS, unidentified_share=1.0),
    "half without identity": replace(_OURS, unidentified_share=0.5),
    "no ends": replace(_OURS, end_delay_s=None),
    "half, no ends": replace(_OURS, unidentified_share=0.5, end_delay_s=None),
    "idle: 1 s": _settings(policy="boost", admission="working_set", idle_s=1.0),
}
OTHERS = ("plas", "atlas", "plas priced", "srpt", "ThunderAgent", "Continuum", "llm-d")
OFFLINE = ("mlfq", "plas", "atlas", DEFAULT)
GAPS = (DEFAULT, "idle: 1 s", "Continuum")
CLIENTS = (DEFAULT, "no identity", "half without identity", "no ends", "half, no ends")
"""Clients of whom the scheduler knows less. Programs without identity end with each call in any case."""


@dataclass(frozen=True, slots=True)
class Study:
    """Runs, and the tables that are made of them."""

    blocks: Sequence[Block]
    tables: Callable[[RunFile], Sequence[str]]


CENTRE = (*cells_of(ALL, (1.3,), (1.0,)), *cells_of(("tools",), (1.3,), (0.5, 0.25)))
"""The cells that decide most: beyond saturation, and with little memory where that makes a difference."""
BY_LOAD = tuple(
    dict.fromkeys(
        (
            *CENTRE,
            *cells_of(ALL, (0.8, 1.6), (1.0,)),
            *cells_of(("tools",), (0.8,), (0.5, 0.25)),
            *cells_of(("mixed",), (1.3,), (0.25,)),
            *cells_of(ALL, (1.3,), (0.5, 0.25)),
            *cells_of(ALL, (0.5,), (1.0,)),
            *cells_of(ALL, (0.8, 1.6), (0.5, 0.25)),
            *cells_of(ALL, (1.0,), KV_SHARES),
            *cells_of(ALL, (0.5,), (0.5, 0.25)),
        )
    )
)
LEAST_CELLS, LEAST_UNSEEN = 20, 9
"""Of BY_LOAD and UNSEEN, those that are run before anything else is."""
PRIVATE = cells_of(WITH_PREFIXES, (1.3,), KV_SHARES, shares_prefixes=False)
"""Programs with equal prefixes that share none."""
UNSEEN = (
    *cells_of(HELD_OUT, (1.3,), (1.0,)),
    *cells_of(("lats_humaneval", "whowhen", "mooncake_conv"), (1.3,), (0.25,)),
    *cells_of(HELD_OUT, (0.8,), (1.0,)),
)
"""Sources on which no constant was chosen."""
BURSTS = cells_of(("tools", "mixed", "chat", "coding", "tree"), (1.3,), (1.0,), arrivals="burst_idle")
"""Trees and coding sessions are fewer than a burst, so their rows are those of one Poisson burst."""
WITH_GAPS = (
    *cells_of(("coding",), (1.3,), (0.25,), gaps=PROPORTIONAL),
    *cells_of(tuple(DRAWN_GAPS), (1.3,), (0.25, 1.0), gaps=DRAWN),
    *cells_of(("coding",), (1.3,), (1.0, 0.5), gaps=PROPORTIONAL),
    *cells_of(tuple(DRAWN_GAPS), (1.3,), (0.5,), gaps=DRAWN),
    *cells_of(("coding",), (0.8,), (0.25, 1.0, 0.5), gaps=PROPORTIONAL),
    *cells_of(tuple(DRAWN_GAPS), (0.8,), (0.25, 1.0, 0.5), gaps=DRAWN),
)
FROM_CLIENTS = (*cells_of(ALL, (1.3,), (1.0,)), *cells_of(("tools",), (1.3,), (0.25,)))
BATCHES = cells_of(ALL, (1.0,), KV_SHARES, arrivals="at_once")
"""The load has no meaning in batches."""
UNSEEN_BATCHES = cells_of(HELD_OUT, (1.0,), (0.25, 1.0), arrivals="at_once")


# Tables.


def default_tables(runs: RunFile) -> list[str]:
    """Return the tables of the default, the cells that it loses first."""
    found = [cell for cell in (*BY_LOAD, *PRIVATE, *UNSEEN) if runs.ratios(cell, DEFAULT)]
    lost = [cell for cell in found if _is_lost(runs, cell)]
    lines = ["## Where it loses", ""]
    counted = f"{len(lost)} of {len(found)} cells have a figure that is above 1 by more than its noise"
    lines += [f"{counted}:", ""]
    header = ("programs", "memory", "load", "seeds", "token latency", "mean", "p95", "p99")
    lost.sort(key=lambda cell: -max(_means(runs, cell, DEFAULT)))
    rows = [
        (
            cell.workload,
            cell.memory,
            f"{cell.load:g}",
            len(runs.seeds(cell, DEFAULT)),
            *map(format_interval, runs.ratios(cell, DEFAULT)),
        )
        for cell in lost
    ]
    lines += [*markdown_table(header, _merged(rows)), ""]
    for title, cells in (
        ("## By load", BY_LOAD),
        ("## Equal system prefixes that none share", PRIVATE),
        ("## Held-out sources", UNSEEN),
        (f"## Bursts of {BURST_PROGRAMS} programs that return to idle", BURSTS),
    ):
        if any(runs.seeds(cell, DEFAULT) for cell in cells):
            lines += [title, "", *_load_table(runs, cells), ""]
    lines += ["## Comparison with other schedulers", ""]
    lines += [
        f"Load 1.3, {len(JUDGING)} seeds in all columns (their number where there are fewer):",
        "",
    ]
    lines += [*_case_table(runs, CENTRE, (DEFAULT, HINTED, *OTHERS)), ""]
    return lines


def gap_tables(runs: RunFile) -> list[str]:
    """Return one table for each load."""
    lines: list[str] = []
    for load in (0.8, 1.3):
        cells = [cell for cell in WITH_GAPS if cell.load == load and runs.seeds(cell, DEFAULT)]
        if not cells:
            continue
        lines += [f"Load {load:g}:", "", *_case_table(runs, cells, GAPS), ""]
    return lines


def client_tables(runs: RunFile) -> list[str]:
    """Return the table of clients of whom less is known."""
    cells = [cell for cell in FROM_CLIENTS if runs.seeds(cell, DEFAULT)]
    return _case_table(runs, cells, CLIENTS)


def offline_tables(runs: RunFile) -> list[str]:
    """Return the makespans, then mean and tail."""
    metrics = {
        "Makespan": "makespan_s",
        "Program latency, mean": "latency_s.mean",
        "Program latency, p95": "latency_s.p95",
    }
    lines = []
    for title, metric in metrics.items():
        rows = []
        for cell in (*BATCHES, *UNSEEN_BATCHES):
            if not runs.ratios(cell, DEFAULT):
                continue
            ratios = [runs.ratios(cell, case, (metric,)) for case in OFFLINE]
            base = fmean(runs.runs[cell, BASE, seed].metrics[metric] for seed in runs.seeds(cell, DEFAULT))
            shown = [format_interval(found[0]) if found else "" for found in ratios]
            rows.append((cell.workload, cell.memory, f"{base:.0f} s", *shown))
        header = ("programs", "memory", BASE, *OFFLINE)
        lines += [f"## {title}", "", *markdown_table(header, _merged(rows)), ""]
    return lines


def _load_table(runs: RunFile, cells: Sequence[Cell]) -> list[str]:
    loads = sorted({cell.load for cell in cells})
    rows: dict[tuple[str, str], dict[float, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.workload, cell.memory), {})[cell.load] = cell
    lines = []
    for (workload, memory), by in sorted(rows.items(), key=lambda item: _row_order(item[1])):
        seeds = max(len(runs.seeds(cell, DEFAULT)) for cell in by.values())
        if not seeds:
            continue
        shown = (runs.figures(by[load], DEFAULT) if load in by else "" for load in loads)
        lines.append((workload, memory, seeds, *shown))
    header = ("programs", "memory", "seeds", *(f"load {load:g}" for load in loads))
    return markdown_table(header, _merged(lines))


def _merged(rows: Iterable[Sequence[object]]) -> list[Sequence[object]]:
    """Return the rows; those that differ in their second cell alone, the memory, are one."""
    memories: dict[tuple[object, ...], list[str]] = {}
    for workload, memory, *rest in rows:
        shown = str(memory)
        memories.setdefault((workload, shown.endswith(_PRIVATE), *rest), []).append(shown)
    return [(workload, _joined(found), *rest) for (workload, _, *rest), found in memories.items()]


def _joined(memories: Sequence[str]) -> str:
    suffix = _PRIVATE if memories[0].endswith(_PRIVATE) else ""
    shares = (memory.removeprefix("KV ").removesuffix(suffix) for memory in memories)
    return f"KV {', '.join(sorted(shares, key=float, reverse=True))}{suffix}"


def _row_order(by: dict[float, Cell]) -> tuple[int, float]:
    cell = next(iter(by.values()))
    return [*ALL, *HELD_OUT].index(cell.workload), -cell.kv_share


def _case_table(runs: RunFile, cells: Sequence[Cell], cases: Sequence[str]) -> list[str]:
    rows = [
        (cell.workload, cell.memory, *(_few(runs, cell, case) for case in cases))
        for cell in sorted(cells, key=lambda cell: _row_order({cell.load: cell}))
        if runs.seeds(cell, DEFAULT)
    ]
    return markdown_table(("programs", "memory", *cases), rows)


def _means(runs: RunFile, cell: Cell, case: str, seeds: Iterable[int] | None = None) -> list[float]:
    return [interval.mean for interval in runs.ratios(cell, case, COMPARED, seeds)]


def _is_lost(runs: RunFile, cell: Cell, seeds: Iterable[int] | None = None) -> bool:
    """Return whether a figure of the default is above that of `fcfs` by two standard errors."""
    chosen = set(runs.seeds(cell, DEFAULT) if seeds is None else seeds)
    found = (runs.values(cell, DEFAULT, metric) for metric in COMPARED)
    return any(
        exceeds_noise([ratio - 1 for seed, ratio in ratios.items() if seed in chosen]) for ratios in found
    )


def _few(runs: RunFile, cell: Cell, case: str) -> str:
    """Return a case's figures for the seeds in JUDGING, and how many those are if some are missing."""
    made = len(set(JUDGING) & set(runs.seeds(cell, case)))
    figures = runs.figures(cell, case, seeds=JUDGING)
    return figures if made in (0, len(JUDGING)) else f"{figures} ({made})"


# Constants.

Constants = tuple[float, float]
"""Strength and weight."""
OURS: Constants = (SchedulerConfig().boost, boost.OUTPUT_WEIGHT)
GRID: tuple[Constants, ...] = (OURS, (0.35, 32.0), (1.4, 32.0), (0.7, 8.0), (0.7, 128.0))
CHOOSING = range(3)
JUDGED = cells_of(ALL, (1.3,))


def case_of(constants: Constants) -> str:
    """Return the name of these constants."""
    return "{:g} R, {:g}".format(*constants)


def log_score(runs: RunFile, workloads: Iterable[str], constants: Constants, seeds: Iterable[int]) -> float:
    """Return the logarithm of the score."""
    cells = [cell for cell in JUDGED if cell.workload in workloads]
    case = case_of(constants)
    return fmean(math.log(ratio) for cell in cells for ratio in _means(runs, cell, case, seeds))


def constants_tables(runs: RunFile) -> list[str]:
    """Return one line for each family that was left out."""
    rows = []
    for left_out in ALL:
        others = [name for name in ALL if name != left_out]
        chosen = min(GRID, key=lambda item: log_score(runs, others, item, CHOOSING))
        best = min(GRID, key=lambda item: log_score(runs, (left_out,), item, JUDGING))
        score, least, ours = (
            math.exp(log_score(runs, (left_out,), item, JUDGING)) for item in (chosen, best, OURS)
        )
        losses = f"{score / least - 1:+.1%}", f"{score / ours - 1:+.1%}"
        shown = f"{score:.3f}", f"{case_of(best)}: {least:.3f}", losses[0], f"{ours:.3f}", losses[1]
        rows.append((left_out, case_of(chosen), *shown))
    header = ("left out", "chosen by the others", "score", "best", "loss", "ours", "loss against ours")
    return markdown_table(header, rows)


STUDIES = {
    "table": Study(
        [
            Block(cells=CENTRE, cases=(BASE, HINTED, *OTHERS), seeds=JUDGING),
            Block(cells=CENTRE, cases=(BASE, DEFAULT), seeds=JUDGING),
            Block(cells=UNSEEN[:LEAST_UNSEEN], cases=(BASE, DEFAULT), seeds=JUDGING),
            Block(cells=BURSTS, cases=(BASE, DEFAULT), seeds=JUDGING),
            Block(cells=BY_LOAD[:LEAST_CELLS], cases=(BASE, DEFAULT), seeds=JUDGING),
            Block(cells=UNSEEN, cases=(BASE, DEFAULT), seeds=JUDGING),
            Block(cells=PRIVATE, cases=(BASE, DEFAULT), seeds=JUDGING),
            Block(cells=BY_LOAD, cases=(BASE, DEFAULT), seeds=JUDGING),
        ],
        default_tables,
    ),
    "constants": Study(
        [Block(cells=JUDGED, cases=(BASE, case_of(item)), seeds=(*CHOOSING, *JUDGING)) for item in GRID],
        constants_tables,
    ),
    "gaps": Study([Block(cells=WITH_GAPS, cases=(BASE, *GAPS), seeds=JUDGING)], gap_tables),
    "clients": Study([Block(cells=FROM_CLIENTS, cases=(BASE, *CLIENTS), seeds=JUDGING)], client_tables),
    "offline": Study(
        [
            Block(cells=BATCHES, cases=(BASE, *OFFLINE), seeds=JUDGING),
            Block(cells=UNSEEN_BATCHES, cases=(BASE, *OFFLINE), seeds=JUDGING),
        ],
        offline_tables,
    ),
}


# Runs.


def settings_of(cell: Cell, case: str) -> SimSettings:
    """Return a case's settings on the engine of a workload; a strength and a weight are a case too."""
    if case in CASES:
        settings = CASES[case]
    else:
        strength, weight = case.split(" R, ")
        # A constant of the module, not a setting: hence these runs are made in this process alone.
        boost.OUTPUT_WEIGHT = float(weight)
        scheduler = SchedulerConfig(policy="boost", boost=float(strength))
        settings = SimSettings(model=PRESET, scheduler=scheduler)
    slots = FEW_SLOTS.get(cell.workload, SLOTS)
    return replace(settings, model=replace(settings.model, max_num_seqs=slots))


def pool_of(data: Path, scale: float) -> Callable[[Cell], Pool]:
    """Return a function that returns the programs of a cell."""
    usual = dict.fromkeys(HELD_OUT, HELD_OUT_COUNT) | HELD_OUT_COUNTS | COUNTS

    @cache
    def read(workload: str, gaps: str) -> Pool:
        count = GAP_COUNTS[workload] if gaps else usual[workload]
        factor = FITS[workload].length_scale if workload in FITS else 1.0
        fits = FITS
        if gaps == PROPORTIONAL:
            fits = {name: replace(fit, gap_rule=GapRule(math.inf, factor)) for name, fit in FITS.items()}
        programs = load_programs(data, workload, fits)
        if gaps == DRAWN:
            programs = [draw_gaps(program, DRAWN_GAPS[workload]) for program in programs]
        return Pool(programs, max(LEAST_PROGRAMS, round(scale * count)))

    return lambda cell: read(cell.workload, cell.gaps)


def main() -> None:
    """Run a study and print its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=tuple(STUDIES))
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--out", type=Path, default=Path("study-results"), help="folder of the runs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="make no further run after this time")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the programs of a run")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    study = STUDIES[arguments.study]
    scaled = "" if arguments.scale == 1 else f"-x{arguments.scale:g}"
    runs = RunFile(arguments.out / f"boost-{arguments.study}{scaled}.jsonl")
    found = run_blocks(
        study.blocks,
        runs,
        pool_of=pool_of(arguments.data, arguments.scale),
        settings_of=settings_of,
        workers=1 if arguments.study == "constants" else arguments.workers,
    )
    started_s = time.monotonic()
    for number, run in enumerate(found, 1):
        if number % 50 == 0:
            sys.stderr.write(f"{number} runs made; {run.cell}\n")
        if time.monotonic() - started_s > arguments.seconds:
            sys.exit("not all runs are made: the same command goes on")
    print("\n".join([made_with(arguments, runs), "", *study.tables(runs)]))


def made_with(arguments: argparse.Namespace, runs: RunFile) -> str:
    """Return what made the tables."""
    codes = ", ".join(runs.codes((DEFAULT, *map(case_of, GRID))))
    command = f"benchmarks/default_study.py {arguments.study} DATA"
    return f"Made by `{command}` on {datetime.now(UTC):%Y-%m-%d}; `boost` as of commit {codes}."


if __name__ == "__main__":
    main()
