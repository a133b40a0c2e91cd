"""Simulates schedulers and engines on recorded programs; study_cases.py says what each study compares.

    study.py policies DATA              the paper's policies, by load
    study.py sensitivity DATA           their settings, one at a time
    study.py preemption DATA            always, at its price, or never; with ample and scarce memory
    study.py swap DATA [--costs FILE]   swap, recompute or never preempt; costs of an A100 or of swap_costs.py
    study.py host-tier DATA             KV blocks in host memory, where the engine's own are short
    study.py balance-memory DATA        balancers under admission, by KV memory

DATA/public has the traces. Prints tables in Markdown, workload by workload. All cases of a group have
the same programs and arrivals. Each ratio is to the group's first case, seed by seed, with Student's 95 %
interval; the row of the first case has absolute figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from study_cases import STUDIES, Group, Study

from autellix_lab.sim.experiment import Sweep, SweepResult, run_sweep
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.recorded import LEAST_PROGRAMS, fit_note, load_programs
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.trace import ProgramTrace


def chosen(group: Group, names: Sequence[str] | None) -> Group:
    """Return the group with its first case and the named ones only."""
    base = next(iter(group.cases))
    if names is None:
        return group
    cases = {name: case for name, case in group.cases.items() if name in (base, *names)}
    return replace(group, cases=cases)


def run_group(
    group: Group, study: Study, programs: Sequence[ProgramTrace], count: int, arguments: argparse.Namespace
) -> SweepResult:
    """Simulate a group."""
    sweep = Sweep(
        programs=group.prepare(programs),
        count=round(count * group.count_factor),
        cases=group.cases,
        loads=group.loads or arguments.loads or study.loads,
        seeds=range(arguments.first_seed, arguments.first_seed + arguments.seeds),
        arrivals=group.arrivals,
    )
    return run_sweep(sweep, workers=arguments.workers)


def rows_of(title: str, result: SweepResult, study: Study) -> list[tuple[str, ...]]:
    """Return a group's rows: loads by cases."""
    base = result.cases[0]
    rows = []
    for load in result.loads:
        for case in result.cases:
            compared = [
                f"{result.interval(case, load, metric).mean:.3g}"
                if case == base
                else format_interval(result.ratio(case, base, load, metric), 3)
                for metric in study.ratios.values()
            ]
            means = [f"{result.interval(case, load, metric).mean:.3g}" for metric in study.means.values()]
            rows.append((title, f"{load:g}", case, *compared, *means))
    return rows


def run(study: Study, arguments: argparse.Namespace) -> None:
    """Simulate every workload, and print its tables as they come."""
    titles = ("group", "load", "case", *study.ratios, *study.means)
    for workload in arguments.workloads or study.counts:
        programs = load_programs(arguments.data, workload, study.fits)
        count = max(LEAST_PROGRAMS, round(study.counts[workload] * arguments.scale))
        table: list[tuple[str, ...]] = []
        for title, whole in study.groups(workload).items():
            group = chosen(whole, arguments.cases)
            table += rows_of(title, run_group(group, study, programs, count, arguments), study)
        print(f"## {workload}\n\n{count} programs per run, {fit_note(workload, study.fits)}.\n")
        print("\n".join(markdown_table(titles, table)), flush=True)


def names(text: str) -> list[str]:
    """Return names separated by commas."""
    return text.split(",")


def main() -> None:
    """Run a study from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=tuple(STUDIES))
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--workloads", type=names, help="default: all of the study")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--loads", type=lambda text: [float(item) for item in text.split(",")])
    parser.add_argument("--cases", type=names, help="beside the first of each group")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the programs of a run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--costs", type=Path, metavar="FILE", help="swap: what swap_costs.py has written")
    arguments = parser.parse_args()
    run(STUDIES[arguments.study](arguments.costs), arguments)


if __name__ == "__main__":
    main()
