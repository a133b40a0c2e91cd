"""`autellix sim run`: one simulation."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from autellix_backend.cli.arguments import above_zero, count
from autellix_lab.cli.arguments import InputError, add_json, adder
from autellix_lab.cli.console import make_console, number_table
from autellix_lab.cli.sim_options import (
    DEFAULT_ARRIVALS,
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
)
from autellix_lab.sim.experiment import Metrics, drain_rate_per_s, draw_bursts, measure, pick
from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import SimSettings, simulate_bursts, simulate_closed
from autellix_lab.workload.trace import ProgramTrace

DEFAULT_RHO = 1.0
ROWS = {
    "program token latency (ms)": ("token_latency_s", 1000.0),
    "program latency (s)": ("latency_s", 1.0),
    "waiting of a program's calls (s)": ("wait_s", 1.0),
}
"""Metric and factor by the title of its row."""
STATISTICS = ("mean", "p50", "p95", "p99")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    add_source_options(parser)
    rate = adder(parser.add_mutually_exclusive_group())
    rate("--rho", f"{OFFERED_LOAD} (default: {DEFAULT_RHO:g})", above_zero, metavar="X")
    rate("--rate", "programs per second instead", above_zero, metavar="R")
    present = "keep this number of programs present: when one ends, the next begins (a closed loop)"
    rate("--present", present, count, metavar="N")
    add = adder(parser)
    add("--policy", "scheduling policy (default: that of --config, else boost)", choices=SCHEDULER_NAMES)
    add_engine_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate and print; 0 on success.

    Raises:
        InputError, TraceError, TokenizerError, ModelError, SettingsError: if something given cannot be used.
    """
    pool = load_pool(args)
    # A run uses all generated programs, and picks some of a trace.
    programs = pool if len(pool) == run_size(args, pool) else pick(pool, run_size(args, pool), args.seed)
    settings = make_settings(args, programs, args.policy)
    rho, rate_per_s = _rate(args, programs, settings)
    started_s = time.perf_counter()
    try:
        if args.present is not None:
            result = simulate_closed(programs, args.present, settings)
        else:
            bursts = draw_bursts(args.arrivals, programs, rate_per_s or 0.0, args.seed, args.burst)
            result = simulate_bursts(bursts, settings)
    except ValueError as error:
        raise InputError(str(error)) from error
    wall_s = time.perf_counter() - started_s
    report = {
        "setting": describe_settings(args, settings) | ({"arrivals": "closed"} if args.present else {}),
        "present": args.present,
        "programs": len(programs),
        "calls": sum(record.calls for record in result.programs),
        "rate_per_s": rate_per_s,
        "rho": rho,
        "metrics": measure(result),
        "steps": sum(engine.steps for engine in result.engines),
        "preemptions": sum(engine.preemptions for engine in result.engines),
        "wall_s": wall_s,
        "notes": policy_notes([settings.baseline or settings.scheduler.policy]),
    }
    if args.json:
        print(json.dumps(report))
        return 0
    _show(make_console(), args, report, result)
    print(describe_engines(settings))
    return 0


def _show(console: Console, args: argparse.Namespace, report: dict[str, Any], result: SimResult) -> None:
    metrics = measure(result)
    policy = report["setting"]["baseline"] or report["setting"]["scheduler"]["policy"]
    console.print(_table(f"{args.source} under {policy}", metrics))
    for title, value in _figures(report, metrics):
        console.print(f"{title:28} {value}", highlight=False, soft_wrap=True)
    console.print(f"{'programs':28} {fit_note(args)}", highlight=False, soft_wrap=True)
    for note in report["notes"]:
        console.print(note, highlight=False, soft_wrap=True)


def _table(title: str, metrics: Metrics) -> Table:
    table = number_table("", *STATISTICS, title=title)
    for label, (metric, factor) in ROWS.items():
        table.add_row(label, *(f"{metrics[f'{metric}.{name}'] * factor:.4g}" for name in STATISTICS))
    return table


def _figures(report: dict[str, Any], metrics: Metrics) -> list[tuple[str, str]]:
    load = "all at once"
    if report["present"] is not None:
        load = f"{report['present']} always present"
    elif report["rate_per_s"] is not None:
        load = f"{report['rate_per_s']:.4g} programs/s"
        load += f", rho {report['rho']:.3g}"
    throughput = []
    if report["present"] is not None:
        rates = f"{metrics['calls_per_min']:.3g} calls, {metrics['programs_per_min']:.3g} programs a minute"
        throughput = [("while all are present", rates)]
    return [
        ("simulated", f"{report['programs']} programs, {report['calls']} calls, {load}"),
        *throughput,
        ("makespan", f"{metrics['makespan_s']:.1f} s, {metrics['tokens_per_s']:.0f} generated tokens/s"),
        ("steps", f"{report['steps']}, engines busy {metrics['utilisation']:.1%} of the time"),
        ("preemptions", f"{report['preemptions']}, {metrics['preemptions_per_call']:.3f} per call"),
        ("cached share of prompts", f"{metrics['cached_share']:.1%}"),
        ("recomputed after preemption", f"{metrics['recomputed_share']:.1%} of the prompts"),
        ("Jain of token latency", f"{metrics['jain']:.3f}"),
        ("most programs alive", f"{metrics['peak_programs']:.0f}"),
        ("time of the simulation", f"{report['wall_s']:.2f} s"),
    ]


def _rate(
    args: argparse.Namespace, programs: Sequence[ProgramTrace], settings: SimSettings
) -> tuple[float | None, float | None]:
    """Return the offered load and the programs per second; None for both if neither decides the arrivals."""
    if args.present is not None:
        _check_closed(args, programs)
        return None, None
    if args.arrivals == "at_once":
        if args.rate is not None or args.rho is not None:
            raise InputError("--rho and --rate have no meaning with --arrivals at_once")
        return None, None
    capacity_per_s = drain_rate_per_s(programs, settings)
    if args.rate is not None:
        return args.rate / capacity_per_s, args.rate
    rho = args.rho if args.rho is not None else DEFAULT_RHO
    return rho, rho * capacity_per_s


def _check_closed(args: argparse.Namespace, programs: Sequence[ProgramTrace]) -> None:
    if args.arrivals != DEFAULT_ARRIVALS:
        raise InputError("--arrivals has no meaning with --present")
    if len(programs) <= args.present:
        raise InputError(
            f"--present is {args.present}: a run needs more programs than that, not {len(programs)}"
        )
