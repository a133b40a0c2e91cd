"""Simulates the policies on recorded programs, and the scheduler's settings one at a time.

    policy_study.py traces DATA       all policies over offered loads, on the traces in DATA/public; held-out
                                      sources by --workloads tau_airline,...
    policy_study.py sensitivity DATA  one setting after the other, at one load

Every figure is a mean over seeds with Student's 95 % interval; ratios are taken seed by seed, between runs
with the same programs and arrivals. Writes JSON and a page of tables, workload by workload.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import Sweep, SweepResult, run_sweep, summarise_runs
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import (
    FEW_SLOTS,
    Chapter,
    fit_note,
    fits_with,
    study_parser,
    study_workloads,
)
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.fit import NO_GAPS, GapRule
from autellix_lab.workload.statistics import Interval
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 16
BASE = SchedulerConfig(preemption="always")
COUNTS = {"chat": 200, "tools": 150, "mixed": 60, "coding": 30, "tree": 12}
HELD_OUT_COUNTS = {
    "tau_airline": 100,
    "whowhen": 60,
    "lats_humaneval": 20,
    "mooncake_conv": 300,
    "tot_game24": 12,
    "sharegpt_zh": 200,
}
LOADS = (0.5, 0.8, 1.0, 1.3, 1.6)
METRICS = {
    "token latency, mean": "token_latency_s.mean",
    "token latency, p99": "token_latency_s.p99",
    "latency, mean": "latency_s.mean",
    "latency, p95": "latency_s.p95",
    "latency, p99": "latency_s.p99",
}
EXTRA = ("makespan_s", "preemptions_per_call", "cached_share", "utilisation", "peak_programs", "jain")
SAME = 0.05


def policies() -> dict[str, SimSettings]:
    """Return every policy with the default settings; those without a bound on starvation by their rule."""
    cases = {name: settings(policy=name) for name in ("fcfs", "sjf", "round_robin", "mlfq")}
    cases |= {name: settings(policy=name) for name in ("plas", "atlas", "atlas-dag", "hinted")}
    cases["hinted, hints off by e^0.5"] = replace(settings(policy="hinted"), hint_sigma=0.5)
    cases["hinted, hints off by e^1"] = replace(settings(policy="hinted"), hint_sigma=1.0)
    cases["srpt (clairvoyant)"] = settings(policy="srpt", beta=math.inf)
    return cases


def variants() -> dict[str, SimSettings]:
    """Return one setting changed at a time, for both program policies."""
    cases = {"fcfs": settings(policy="fcfs")}
    for policy in ("plas", "atlas"):
        cases[policy] = settings(policy=policy)
        cases[f"{policy}, no demotion"] = settings(policy=policy, demotes=False)
        for beta in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, math.inf):
            cases[f"{policy}, beta {beta:g}"] = settings(policy=policy, beta=beta)
        for first_s in (0.1, 0.5, 2.0, 8.0):
            for factor, levels in ((2.0, 10), (4.0, 5), (2.0, 5)):
                bounds = tuple(first_s * factor**level for level in range(levels - 1))
                name = f"{policy}, {levels} levels from {first_s:g} s by {factor:g}"
                cases[name] = settings(policy=policy, bounds=bounds)
        for steps in (2, 4, 8, 16):
            cases[f"{policy}, N {steps}"] = settings(policy=policy, period_steps=steps)
        cases[f"{policy}, weighted tokens"] = settings(policy=policy, service="tokens")
    return cases


def settings(**changes: Any) -> SimSettings:
    """Return the simulated engine under the default scheduler with these changes."""
    return SimSettings(model=replace(PRESET, max_num_seqs=SLOTS), scheduler=replace(BASE, **changes))


def on_engine_of(workload: str, cases: Mapping[str, SimSettings]) -> dict[str, SimSettings]:
    """Return the cases on an engine with the workload's number of slots."""
    slots = FEW_SLOTS.get(workload, SLOTS)
    return {
        name: replace(case, model=replace(case.model, max_num_seqs=slots)) for name, case in cases.items()
    }


def verdict(ratio: Interval) -> str:
    """Call a ratio to the baseline a win, equal or a loss; its whole interval must lie on that side."""
    if ratio.mean + ratio.half_width < 1 - SAME:
        return "wins"
    if ratio.mean - ratio.half_width > 1 + SAME:
        return "loses"
    return "equal" if abs(ratio.mean - 1) <= SAME else "open"


def page(
    workload: str, result: SweepResult, cases: Sequence[str], loads: Iterable[float], note: str
) -> list[str]:
    """Return one workload's tables."""
    lines = [f"## {workload}", "", f"{note}.", ""]
    for load in loads:
        base = {title: result.interval("fcfs", load, metric) for title, metric in METRICS.items()}
        shown = ", ".join(f"{title} {interval.mean:.3g} s" for title, interval in base.items())
        busy = result.interval("fcfs", load, "utilisation").mean
        lines += [f"**Load {load:g}**: `fcfs` has {shown}; the engine is busy {busy:.0%} of the time.", ""]
        rows = []
        for case in cases[1:]:
            ratios = [result.ratio(case, "fcfs", load, metric) for metric in METRICS.values()]
            preemptions = result.interval(case, load, "preemptions_per_call").mean
            rows.append((case, *map(format_interval, ratios), f"{preemptions:.2f}", verdict(ratios[0])))
        titles = ("ratio to fcfs", *METRICS, "preemptions per call", "verdict on the mean")
        lines += [*markdown_table(titles, rows), ""]
    return lines


def run(
    arguments: argparse.Namespace, cases: Mapping[str, SimSettings], loads: Sequence[float], out: str
) -> None:
    """Sweep every workload and write the results as they come."""
    fits = fits_with(arguments.gaps)

    def chapter(workload: str, programs: Sequence[ProgramTrace], count: int) -> Chapter:
        sweep = Sweep(
            programs=programs,
            count=count,
            cases=on_engine_of(workload, cases),
            loads=loads,
            seeds=range(arguments.seeds),
        )
        result = run_sweep(sweep, workers=arguments.workers)
        rows = summarise_runs(result, [*METRICS.values(), *EXTRA])
        slots = FEW_SLOTS.get(workload, SLOTS)
        note = f"{count} programs per run, {slots} slots, {fit_note(workload, fits)}"
        return Chapter({"rows": rows}, page(workload, result, list(cases), loads, note))

    study_workloads(arguments, out, COUNTS | HELD_OUT_COUNTS, chapter, fits=fits)


def main() -> None:
    """Run the study from the command line."""
    parser = study_parser(__doc__, COUNTS, studies=("traces", "sensitivity"), workers=os.cpu_count() or 1)
    parser.add_argument("--load", type=float, default=1.3, help="of the sensitivity study")
    parser.add_argument(
        "--gap-cap",
        dest="gaps",
        type=lambda text: GapRule(float(text)),
        default=NO_GAPS,
        metavar="S",
        help="play recorded gaps of at most this many seconds; inf as they are (default: 0, none)",
    )
    arguments = parser.parse_args()
    if arguments.study == "traces":
        run(arguments, policies(), LOADS, "real-traces")
    else:
        run(arguments, variants(), (arguments.load,), "sensitivity")


if __name__ == "__main__":
    main()
