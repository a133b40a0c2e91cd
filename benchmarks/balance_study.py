"""Simulates the balancers on recorded programs, and how the rate at one latency grows with the engines.

    balance_study.py memory DATA    balancers on 2 and 4 engines, and on a slow and a fast one, under
                                    admission, by their KV memory
    balance_study.py traces DATA    balancers on 4 equal engines, and on 2 slow and 2 fast ones
    balance_study.py scaling DATA   the highest rate at one latency, for 1 to 64 engines

DATA/public has the traces. All balancers see the same programs and arrivals; ratios are taken seed by seed,
with Student's 95 % interval. Writes JSON and a page of tables.
The rules of `working-set` were chosen on seeds 0 to 4; `--first-seed 5` judges them on others.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import (
    COMPARED,
    Sweep,
    SweepResult,
    drain_rate_per_s,
    run_sweep,
    summarise_runs,
)
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import (
    FEW_SLOTS,
    HELD_OUT,
    LEAST_PROGRAMS,
    fit_note,
    load_programs,
    study_parser,
    write_results,
)
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.table import format_interval, load_at
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
KV_SHARE = 0.25
"""Share of the engine's KV blocks: as many blocks per call as with large batches."""
MEMORY_BASELINE = "locality-bounded"
MEMORY_COUNTS = {"chat": 200, "tools": 150, "mixed": 60, "coding": 30, "tree": 12}
HELD_OUT_COUNT = 40
"""Programs for each engine."""
MEMORY_CELLS = {
    "tools": ((1.0, True), (0.5, True), (0.25, True), (0.5, False)),
    "chat": ((1.0, True),),
    "mixed": ((1.0, True), (0.25, True)),
    "coding": ((1.0, True),),
    "tree": ((1.0, True),),
    **dict.fromkeys(HELD_OUT, ((1.0, True), (0.25, True))),
}
"""Share of the preset's KV memory, and whether programs share their prefixes."""
MEMORY_LOADS = (0.8, 1.3)
MEMORY_ENGINES = {"2": (1.0, 1.0), "4": (1.0, 1.0, 1.0, 1.0), "slow and fast": (0.6, 1.4)}
"""Speeds."""
BASELINE = "round_robin"
OURS = "locality-bounded"
ENGINE_SETS = {"4 equal": (1.0, 1.0, 1.0, 1.0), "2 slow, 2 fast": (0.6, 0.6, 1.4, 1.4)}
"""Speeds; the sum is the same, so a load is the same rate."""
COUNTS = {"chat": 300, "tools": 120, "tree": 20, "mixed": 60, "coding": 40}
LOADS = (0.8, 1.0, 1.2)
METRICS = {
    "mean latency": "latency_s.mean",
    "p95 latency": "latency_s.p95",
    "mean token latency": "token_latency_s.mean",
}
CACHED = "cached_share"
TOLERANCE = 0.02
"""A mean that is further above the best of the others is marked."""

SCALED = ("locality", OURS)
PROGRAMS_PER_ENGINE = 80
SEEDS_BY_ENGINES = {1: 8, 2: 4, 4: 3, 8: 2, 16: 1, 32: 1, 64: 1}
"""Small clusters need more draws: one long program weighs more there."""
SCALING_LOADS = (0.9, 1.1, 1.3, 1.5)
SCALING_SLOTS = 8
"""Fewer slots than above, so that an engine's programs last longer than its queue takes to build."""
SCALING_WORKLOAD = "chat"
SLO_METRIC = "token_latency_s.p95"
SLO_S = 0.025
"""Of 95 % of the programs (s per token): about twice an idle engine's."""


def settings(case: str, speeds: Sequence[float], slots: int) -> SimSettings:
    """Return engines of these speeds under the default policy, preempting as in the paper, and a balancer."""
    assert PRESET.kv_blocks is not None
    model = replace(PRESET, max_num_seqs=slots, kv_blocks=int(PRESET.kv_blocks * KV_SHARE))
    return SimSettings(
        model=model,
        scheduler=SchedulerConfig(preemption="always"),
        engines=len(speeds),
        engine_speeds=tuple(speeds),
        balancer=case,
    )


def excess(result: SweepResult, load: float, metric: str) -> float:
    """Return how far ours lies above the best of the other balancers, by mean ratios to the baseline."""
    means = {name: result.ratio(name, BASELINE, load, metric).mean for name in BALANCER_NAMES}
    return means.pop(OURS) / min(means.values()) - 1


def trace_table(result: SweepResult) -> list[str]:
    """Return one table: loads by balancers."""
    titles = ("load", "balancer", "cached", *METRICS)
    rows = []
    for load in LOADS:
        for name in BALANCER_NAMES:
            cells = []
            for metric in METRICS.values():
                mark = " (!)" if name == OURS and excess(result, load, metric) > TOLERANCE else ""
                cells.append(format_interval(result.ratio(name, BASELINE, load, metric)) + mark)
            cached = f"{result.interval(name, load, CACHED).mean:.0%}"
            rows.append((f"{load:g}", name, cached, *cells))
    return markdown_table(titles, rows)


def run_traces(arguments: argparse.Namespace) -> None:
    """Compare the balancers on every workload and set of engines."""
    rows: dict[str, Any] = {}
    lines: list[str] = []
    for workload in arguments.workloads:
        programs = load_programs(arguments.data, workload)
        count = max(LEAST_PROGRAMS, round(COUNTS[workload] * arguments.scale))
        slots = FEW_SLOTS.get(workload, SLOTS)
        for title, speeds in ENGINE_SETS.items():
            started = time.perf_counter()
            sweep = Sweep(
                programs=programs,
                count=count,
                cases={name: settings(name, speeds, slots) for name in BALANCER_NAMES},
                loads=LOADS,
                seeds=range(arguments.seeds),
            )
            result = run_sweep(sweep, workers=arguments.workers)
            rows[f"{workload}, {title}"] = {
                "count": count,
                "fit": fit_note(workload),
                "rows": summarise_runs(result, [*METRICS.values(), CACHED, "makespan_s"]),
                "excess": {
                    f"{load:g}": {metric: excess(result, load, metric) for metric in METRICS.values()}
                    for load in LOADS
                },
            }
            base = ", ".join(
                f"{result.interval(BASELINE, load, 'latency_s.mean').mean:.1f} s" for load in LOADS
            )
            lines += [f"## {workload}, {title} engines", ""]
            lines += [
                f"{count} programs per run, {fit_note(workload)}. Mean latency of `{BASELINE}`: {base}.",
                "",
            ]
            lines += [*trace_table(result), ""]
            write_results(arguments.out, "balance-traces", rows, lines)
            print(f"{workload}, {title}: {time.perf_counter() - started:.0f} s", flush=True)


def memory_settings(
    case: str, speeds: Sequence[float], slots: int, kv_share: float, *, shares: bool
) -> SimSettings:
    """Return engines of these speeds under the default scheduler, and a balancer."""
    return SimSettings(
        model=replace(PRESET, max_num_seqs=slots).with_kv(kv_share),
        scheduler=SchedulerConfig(),
        engines=len(speeds),
        engine_speeds=tuple(speeds),
        balancer=case,
        shares_prefixes=shares,
    )


def run_memory(arguments: argparse.Namespace) -> None:
    """Compare the balancers under admission; each cell has token, mean, p95 and p99 of program latency."""
    names = arguments.cases or [name for name in BALANCER_NAMES if name != MEMORY_BASELINE]
    rows: dict[str, Any] = {}
    table: list[Sequence[str]] = []
    for workload in arguments.workloads:
        programs = load_programs(arguments.data, workload)
        for kv_share, shares in MEMORY_CELLS[workload]:
            for engines, speeds in MEMORY_ENGINES.items():
                if arguments.engines and len(speeds) not in arguments.engines:
                    continue
                started = time.perf_counter()
                slots = FEW_SLOTS.get(workload, SLOTS)
                sweep = Sweep(
                    programs=programs,
                    count=round(MEMORY_COUNTS.get(workload, HELD_OUT_COUNT) * arguments.scale * len(speeds)),
                    cases={
                        name: memory_settings(name, speeds, slots, kv_share, shares=shares)
                        for name in (MEMORY_BASELINE, *names)
                    },
                    loads=MEMORY_LOADS,
                    seeds=range(arguments.first_seed, arguments.first_seed + arguments.seeds),
                )
                result = run_sweep(sweep, workers=arguments.workers)
                title = f"{workload}, KV {kv_share:g}{'' if shares else ', private'}"
                rows[f"{title}, {engines} engines"] = summarise_runs(result, [*COMPARED, CACHED])
                for load in MEMORY_LOADS:
                    base_s = result.interval(MEMORY_BASELINE, load, COMPARED[1]).mean
                    cells = [
                        " ".join(
                            f"{ratio.mean:.2f}"
                            for ratio in result.ratios(name, MEMORY_BASELINE, load).values()
                        )
                        for name in names
                    ]
                    cached = " ".join(
                        f"{result.interval(name, load, CACHED).mean:.0%}"
                        for name in (MEMORY_BASELINE, *names)
                    )
                    table.append((title, engines, f"{load:g}", f"{base_s:.3g} s", *cells, cached))
                titles = ("programs", "engines", "load", f"mean of {MEMORY_BASELINE}", *names, "cached")
                write_results(arguments.out, "balance-memory", rows, markdown_table(titles, table))
                print(f"{title}, {engines} engines: {time.perf_counter() - started:.0f} s", flush=True)


def highest_load(result: SweepResult, balancer: str, slo_s: float) -> float:
    """Return the load at which the mean over the seeds reaches the SLO; infinite if outside the range."""
    curve = [(load, result.interval(balancer, load, SLO_METRIC).mean) for load in SCALING_LOADS]
    return load_at(curve, slo_s)


def run_scaling(arguments: argparse.Namespace) -> None:
    """Find the highest rate at one latency by number of engines."""
    programs: list[ProgramTrace] = load_programs(arguments.data, SCALING_WORKLOAD)
    rows: dict[str, Any] = {"slo_s": SLO_S, "loads": SCALING_LOADS, "engines": {}}
    rates: dict[tuple[str, int], float] = {}
    counts = arguments.engines or [*SEEDS_BY_ENGINES]
    for engines in counts:
        started = time.perf_counter()
        cases = {name: settings(name, (1.0,) * engines, SCALING_SLOTS) for name in SCALED}
        sweep = Sweep(
            programs=programs,
            count=max(LEAST_PROGRAMS, round(PROGRAMS_PER_ENGINE * arguments.scale * engines)),
            cases=cases,
            loads=SCALING_LOADS,
            seeds=range(SEEDS_BY_ENGINES[engines]),
        )
        result = run_sweep(sweep, workers=arguments.workers)
        drain = drain_rate_per_s(programs, cases[OURS])
        found = {name: highest_load(result, name, SLO_S) for name in SCALED}
        for name, load in found.items():
            rates[name, engines] = load * drain
        latencies = summarise_runs(result, [SLO_METRIC, "token_latency_s.mean", CACHED])
        # JSON has no infinity: outside the range, its end is written.
        rows["engines"][engines] = {"load_at_slo": {name: str(load) for name, load in found.items()}}
        rows["engines"][engines]["rows"] = latencies
        done = [number for number in counts if (OURS, number) in rates]
        write_results(arguments.out, "balance-scaling", rows, scaling_table(rates, done))
        print(f"{engines} engines: {time.perf_counter() - started:.0f} s", flush=True)


def scaling_table(rates: Mapping[tuple[str, int], float], engines: Sequence[int]) -> list[str]:
    """Return the table: engines by balancers, with the straight line through one engine's rate."""
    titles = ["engines"]
    for name in SCALED:
        titles += [f"{name}, programs/s", "each", "over the straight line"]
    rows = []
    for number in engines:
        cells = [str(number)]
        for name in SCALED:
            rate, each = rates[name, number], rates[name, number] / number
            line = each / rates[name, 1] if (name, 1) in rates else math.nan
            cells += [f"{rate:.2f}", f"{each:.3f}", f"{line:.3f}"]
        rows.append(cells)
    return markdown_table(titles, rows)


def main() -> None:
    """Run the study from the command line."""
    parser = study_parser(__doc__, COUNTS, studies=("memory", "traces", "scaling"))
    parser.add_argument("--engines", type=lambda text: [*map(int, text.split(","))])
    parser.add_argument("--first-seed", type=int, default=0, help="memory: of the seeds")
    parser.add_argument("--cases", type=lambda text: text.split(","), help="memory: balancers")
    arguments = parser.parse_args()
    {"memory": run_memory, "traces": run_traces, "scaling": run_scaling}[arguments.study](arguments)


if __name__ == "__main__":
    main()
