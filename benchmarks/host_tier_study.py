"""Simulates schedulers with and without KV blocks in host memory, where the engine's own are short.

    host_tier_study.py DATA                          tools, KV half and a quarter, without tool gaps
    host_tier_study.py DATA --gap 5                  tool gaps of 5 s in the median, log-normal with sigma 1
    host_tier_study.py DATA --host 0.5               host memory of half the preset's blocks; else unbounded

Each row: ratios to `fcfs` without host memory of the same programs and arrivals (token latency, then mean,
p95 and p99 of program latency), then the shares of prompts that the engine's cache had, that were loaded, and
that were computed. Writes JSON and a page of tables; cells in which host memory loses come first.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import COMPARED, Sweep, SweepResult, run_sweep
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import FEW_SLOTS, Chapter, study_parser, study_workloads
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
COUNTS = {"tools": 150, "mixed": 60, "chat": 200}
BASE, DEFAULT, WITH_HOST = "fcfs", "default", "default, host"
LOST = 1.03


def cases(workload: str, kv_share: float, host_share: float | None) -> dict[str, SimSettings]:
    """Return the compared schedulers by name; the first is the base of all ratios."""
    slots = FEW_SLOTS.get(workload, SLOTS)
    assert PRESET.kv_blocks is not None
    model = replace(PRESET, max_num_seqs=slots).with_kv(kv_share)
    host_blocks = None if host_share is None else int(host_share * PRESET.kv_blocks)
    host = replace(model, resume="host", host_blocks=host_blocks)

    def case(policy: str, engine: Any, admission: str = "auto") -> SimSettings:
        return SimSettings(model=engine, scheduler=SchedulerConfig(policy=policy, admission=admission))

    return {
        BASE: case("fcfs", model),
        "fcfs, host": case("fcfs", host),
        DEFAULT: case("boost", model),
        WITH_HOST: case("boost", host),
        "default, host, loads in turn": case("boost", replace(host, loads_ahead=False)),
        "boost without admission, host": case("boost", host, "none"),
    }


def with_gaps(programs: Sequence[ProgramTrace], median_s: float) -> list[ProgramTrace]:
    """Give each call but a program's first a gap, log-normal with sigma 1."""
    rng = random.Random("gaps")
    found = []
    for program in programs:
        calls = [
            replace(call, gap_before_s=rng.lognormvariate(math.log(median_s), 1.0)) if call.parents else call
            for call in program.calls
        ]
        found.append(replace(program, calls=tuple(calls)))
    return found


def row_of(result: SweepResult, case: str, load: float) -> list[float]:
    """Return a case's four ratios, and its shares of prompts: cached, loaded, computed."""
    ratios = [interval.mean for interval in result.ratios(case, BASE, load).values()]
    found, loaded = (result.interval(case, load, metric).mean for metric in ("cached_share", "loaded_share"))
    return [*ratios, found - loaded, loaded, 1 - found]


def table(result: SweepResult, load: float) -> list[str]:
    """Return the table of one load."""
    rows = []
    for case in result.cases:
        row = row_of(result, case, load)
        rows.append([case, " ".join(f"{x:.2f}" for x in row[:4]), *(f"{x:.0%}" for x in row[4:])])
    mean_s = result.interval(BASE, load, COMPARED[1]).mean
    head = ["scheduler", "token, mean, p95, p99", "cached", "loaded", "computed"]
    return [f"Load {load:g}; mean latency of fcfs {mean_s:.3g} s", "", *markdown_table(head, rows), ""]


def page(cells: Mapping[float, SweepResult], loads: Sequence[float], title: str) -> list[str]:
    """Return the tables of a workload, the cells in which host memory makes the default worse first."""
    lost = []
    for kv_share, result in cells.items():
        for load in loads:
            pairs = zip(row_of(result, WITH_HOST, load)[:4], row_of(result, DEFAULT, load)[:4], strict=True)
            worst = max(with_host / without for with_host, without in pairs)
            if worst > LOST:
                lost.append(f"- KV {kv_share:g}, load {load:g}: {worst:.2f} of the default without it")
    lines = [
        f"## {title}",
        "",
        f"Host memory loses in {len(lost)} of {len(cells) * len(loads)} cells.",
        "",
        *lost,
    ]
    for kv_share, result in cells.items():
        lines += ["", f"### KV {kv_share:g}", ""]
        for load in loads:
            lines += table(result, load)
    return lines


def main() -> None:
    """Run the study."""
    parser = study_parser(__doc__, ("tools",))
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--loads", type=_numbers, default=(0.8, 1.3))
    parser.add_argument("--kv", type=_numbers, default=(0.5, 0.25))
    parser.add_argument("--gap", type=float, default=0.0, help="median tool gap (s)")
    parser.add_argument("--host", type=float, help="host memory, as a share of the preset's KV blocks")
    parser.add_argument("--name", default="host-tier", help="of the files")
    arguments = parser.parse_args()

    def chapter(workload: str, programs: Sequence[ProgramTrace], count: int) -> Chapter:
        return study(workload, programs, count, arguments)

    study_workloads(arguments, arguments.name, COUNTS, chapter)


def study(
    workload: str, programs: Sequence[ProgramTrace], count: int, arguments: argparse.Namespace
) -> Chapter:
    """Simulate a workload with each KV memory."""
    if arguments.gap:
        programs = with_gaps(programs, arguments.gap)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    cells = {}
    for kv_share in arguments.kv:
        compared = cases(workload, kv_share, arguments.host)
        sweep = Sweep(programs=programs, count=count, cases=compared, loads=arguments.loads, seeds=seeds)
        cells[kv_share] = run_sweep(sweep, workers=arguments.workers)
    rows = {
        f"KV {kv_share:g}, load {load:g}": {case: row_of(result, case, load) for case in result.cases}
        for kv_share, result in cells.items()
        for load in arguments.loads
    }
    gap = f"tool gaps of {arguments.gap:g} s" if arguments.gap else "no tool gaps"
    return Chapter(rows, page(cells, arguments.loads, f"{workload}, {gap}, {count} programs"))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(item) for item in text.split(","))


if __name__ == "__main__":
    main()
