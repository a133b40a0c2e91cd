"""Simulates preemption always, at its price, or never, with ample and scarce memory.

    preemption_study.py DATA       on the traces in DATA/public

Ratios to `fcfs` are taken seed by seed, between runs with the same programs and arrivals. Writes JSON and a
page of tables, and prints the cells in which the default is more than 3 % above the paper's rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import Sweep, SweepResult, run_sweep, summarise_runs
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import Chapter, study_parser, study_workloads
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
COUNTS = {"chat": 120, "tools": 150, "mixed": 45, "tree": 8}
LOADS = (0.8, 1.0, 1.3)
SHORT = {"chat": 10, "tools": 4, "mixed": 8, "tree": 16}
"""Share of the preset's memory: too small for all contexts at these loads, large enough for the longest."""
BRANCHING = ("mixed", "tree")
"""Workloads in which `atlas` orders differently from `plas`."""
METRICS = ("token_latency_s.mean", "latency_s.mean", "token_latency_s.p99")
EXTRA = ("preemptions_per_call", "cached_share")
TITLES = (
    "KV blocks",
    "load",
    "case",
    "token latency, mean",
    "latency, mean",
    "token latency, p99",
    "preemptions per call",
    "cached",
)
WORSE = 1.03


def memories(workload: str) -> dict[str, int | None]:
    """Return numbers of KV blocks by label."""
    assert PRESET.kv_blocks is not None
    part = SHORT[workload]
    return {"no bound": None, "preset": PRESET.kv_blocks, f"preset / {part}": PRESET.kv_blocks // part}


def cases(workload: str, kv_blocks: int | None) -> dict[str, SimSettings]:
    """Return today's vLLM and the program policies with each kind of preemption."""
    model = replace(PRESET, max_num_seqs=SLOTS, kv_blocks=kv_blocks)
    found = {"fcfs": SimSettings(model=model, scheduler=SchedulerConfig(policy="fcfs"))}
    for policy in ("plas", "atlas") if workload in BRANCHING else ("plas",):
        for preemption in ("always", "priced", "never"):
            config = SchedulerConfig(policy=policy, preemption=preemption)
            found[f"{policy}, {preemption}"] = SimSettings(model=model, scheduler=config)
    return found


def worse_cells(result: SweepResult, names: Sequence[str], where: str) -> list[str]:
    """Name the cells in which the price costs more than a few percent."""
    found = []
    for name in names:
        if not name.endswith("priced"):
            continue
        rival = name.replace("priced", "always")
        for load in LOADS:
            for metric in METRICS[:2]:
                ratio = result.interval(name, load, metric).mean / result.interval(rival, load, metric).mean
                if ratio > WORSE:
                    found.append(f"{where}, load {load:g}, {name}: {metric} is {ratio:.3f} of {rival}")
    return found


def table_rows(result: SweepResult, names: Sequence[str], memory: str) -> list[tuple[str, ...]]:
    """Return the rows of one workload with one memory."""
    rows = []
    for name in names[1:]:
        for load in LOADS:
            ratios = [format_interval(result.ratio(name, "fcfs", load, metric)) for metric in METRICS]
            extra = [result.interval(name, load, metric).mean for metric in EXTRA]
            rows.append((memory, f"{load:g}", name, *ratios, f"{extra[0]:.2f}", f"{extra[1]:.0%}"))
    return rows


def main() -> None:
    """Run the study from the command line."""
    arguments = study_parser(__doc__, COUNTS).parse_args()
    worse: list[str] = []

    def chapter(workload: str, programs: Sequence[ProgramTrace], count: int) -> Chapter:
        cells: list[tuple[str, ...]] = []
        rows: Mapping[str, Any] = {}
        for memory, kv_blocks in memories(workload).items():
            settings = cases(workload, kv_blocks)
            sweep = Sweep(
                programs=programs,
                count=count,
                cases=settings,
                loads=LOADS,
                seeds=range(arguments.seeds),
            )
            result = run_sweep(sweep, workers=arguments.workers)
            rows = {**rows, memory: summarise_runs(result, [*METRICS, *EXTRA])}
            cells += table_rows(result, list(settings), memory)
            worse.extend(worse_cells(result, list(settings), f"{workload}, {memory}"))
        note = f"{count} programs per run."
        lines = [f"## {workload}", "", note, "", *markdown_table(TITLES, cells), ""]
        return Chapter({"memories": rows}, lines)

    study_workloads(arguments, "preemption", COUNTS, chapter)
    print("\n".join(worse) or "no cell is worse")


if __name__ == "__main__":
    main()
