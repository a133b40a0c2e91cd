"""`autellix sim sweep`: policies over offered loads and seeds, as ratios with intervals."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path

from rich.table import Table

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.cli.arguments import InputError, add_json, adder, names_of, numbers
from autellix_lab.cli.console import lab_extra, make_console, number_table, progress_bars
from autellix_lab.cli.sim_options import (
    OFFERED_LOAD,
    SCHEDULER_NAMES,
    add_engine_options,
    add_source_options,
    describe_engines,
    describe_settings,
    fit_note,
    load_pool,
    make_settings,
    policy_notes,
    run_size,
    with_policy,
)
from autellix_lab.sim.experiment import Sweep, SweepResult, run_sweep
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.sweep_plot import write_sweep_plot
from autellix_lab.sim.table import (
    LATENCY,
    RATIO_METRICS,
    equal_latency,
    format_interval,
    has_no_queue,
    nearest_load,
    ratio_rows,
    sweep_report,
)
from autellix_lab.workload.statistics import Interval
from autellix_lab.workload.trace import ProgramTrace

POLICIES = ("fcfs", "mlfq", "plas", "atlas", "srpt")
LOADS = (0.5, 0.8, 1.0, 1.2, 1.5)
SEEDS = 5
BASELINE_COLUMNS = {
    "programs/s": ("programs_per_s", 1, ".3g"),
    "token latency (ms)": ("token_latency_s.mean", 1000, ".4g"),
    "p99 (ms)": ("token_latency_s.p99", 1000, ".4g"),
    "latency (s)": ("latency_s.mean", 1, ".4g"),
    "engines busy": ("utilisation", 1, ".0%"),
    "cached": ("cached_share", 1, ".0%"),
}
"""Metric, factor and format by the title of each column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    add_source_options(parser)
    add = adder(parser)
    policies = f"of {', '.join(SCHEDULER_NAMES)}; the first is the baseline"
    add("--policies", policies, partial(names_of, SCHEDULER_NAMES), POLICIES, metavar="P,…")
    loads = f"{OFFERED_LOAD} (default: {','.join(f'{load:g}' for load in LOADS)})"
    add("--loads", loads, _loads, metavar="X,…")
    add("--seeds", "runs of each point", count, SEEDS, metavar="N")
    latency = "seconds per token at which throughputs are compared"
    add("--at-latency", f"{latency} (default: the baseline's at the load nearest 1)", above_zero, metavar="S")
    add_engine_options(parser)
    add("--workers", "processes (default: one less than there are cores)", count, metavar="N")
    add("--out", "write sweep.json and sweep.png here", Path, metavar="DIR")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Sweep and print; 0 on success.

    Raises:
        InputError, TraceError, TokenizerError, ModelError, SettingsError: if something given cannot be used.
        OSError: if the results cannot be written.
    """
    pool = load_pool(args, runs=args.seeds)
    base = make_settings(args, pool)
    if args.out is not None:
        # A long sweep whose results cannot be written would be lost.
        args.out.mkdir(parents=True, exist_ok=True)
    workers = args.workers or max(1, (os.cpu_count() or 1) - 1)
    console = make_console(is_stderr=args.json)
    started_s = time.perf_counter()
    try:
        sweep = _sweep(args, pool, base)
        with progress_bars(console) as follow:
            result = run_sweep(sweep, workers=workers, on_point=follow("simulations", sweep.runs))
    except ValueError as error:
        raise InputError(str(error)) from error
    wall_s = time.perf_counter() - started_s
    baseline = args.policies[0]
    equal = equal_latency(result, baseline, latency_s=args.at_latency) if len(sweep.loads) > 1 else {}
    report = {
        "setting": describe_settings(args, base) | {"pool": len(pool), "programs": sweep.count},
        **sweep_report(result, baseline, equal, args.at_latency),
        "notes": _notes(args, result),
        "wall_s": wall_s,
    }
    if args.out is not None:
        _write(args.out, report, result, f"{args.source} on {base.model.name}, {sweep.count} programs a run")
    if args.json:
        print(json.dumps(report))
        return 0
    console.print(_baseline_table(result, baseline))
    console.print(_ratio_table(result, baseline))
    runs = f"{args.seeds} seed(s), {sweep.count} programs a run out of {len(pool)}"
    for line in (
        *_equal_lines(args, result, equal),
        f"{args.source}: {runs}; {fit_note(args)}",
        describe_engines(base),
        *_notes(args, result),
        f"{len(result.points)} simulations in {wall_s:.1f} s with {workers} process(es)",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def _sweep(args: argparse.Namespace, pool: Sequence[ProgramTrace], base: SimSettings) -> Sweep:
    return Sweep(
        programs=pool,
        count=run_size(args, pool),
        cases={policy: with_policy(base, policy) for policy in args.policies},
        loads=_chosen_loads(args),
        seeds=range(args.seed, args.seed + args.seeds),
        arrivals=args.arrivals,
        burst=args.burst,
    )


def _chosen_loads(args: argparse.Namespace) -> tuple[float, ...]:
    if args.arrivals != "at_once":
        return args.loads or LOADS
    if args.loads is not None:
        raise InputError("--loads has no meaning with --arrivals at_once")
    return (1.0,)


def _baseline_table(result: SweepResult, baseline: str) -> Table:
    table = number_table("load", *BASELINE_COLUMNS, title=f"{baseline}: means over the seeds")
    for load in result.loads:
        means = [
            (result.interval(baseline, load, name).mean, factor, form)
            for name, factor, form in BASELINE_COLUMNS.values()
        ]
        table.add_row(f"{load:g}", *(format(mean * factor, form) for mean, factor, form in means))
    return table


def _ratio_table(result: SweepResult, baseline: str) -> Table:
    title = f"ratios to {baseline}, less is better: mean over the seeds ± 95 % interval"
    table = number_table("load", "policy", *RATIO_METRICS, title=title, texts=2)
    for load, rows in itertools.groupby(ratio_rows(result, baseline), key=itemgetter(0)):
        table.add_section()
        for position, (_, case, ratios) in enumerate(rows):
            table.add_row("" if position else f"{load:g}", case, *map(format_interval, ratios))
    return table


def _equal_lines(
    args: argparse.Namespace, result: SweepResult, rows: Mapping[str, Interval | None]
) -> Iterator[str]:
    if not rows:
        return
    load = nearest_load(result.loads)
    wanted_s = args.at_latency or result.interval(args.policies[0], load, LATENCY).mean
    wanted = f"{wanted_s * 1000:.4g} ms a token"
    if args.at_latency is None:
        wanted = f"that of {args.policies[0]} at load {load:g}, {wanted}"
    yield f"load at which the mean token latency is {wanted} (interpolated):"
    for case, found in rows.items():
        yield f"  {case:12} {'outside the measured range' if found is None else format_interval(found)}"


def _notes(args: argparse.Namespace, result: SweepResult) -> list[str]:
    notes = policy_notes(args.policies)
    if has_no_queue(result, args.policies[0]):
        notes.append(
            f"calls hardly waited even at load {result.loads[-1]:g}, so there was nothing to order: "
            "raise --programs or --loads, or lower --max-num-seqs"
        )
    return notes


def _write(folder: Path, report: dict[str, object], result: SweepResult, title: str) -> None:
    (folder / "sweep.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    with lab_extra("sweep.png"):
        write_sweep_plot(folder / "sweep.png", result, title)


def _loads(text: str) -> tuple[float, ...]:
    return tuple(sorted(set(numbers(text, example="0.5,1,1.5"))))
