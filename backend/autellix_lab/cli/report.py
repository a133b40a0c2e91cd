"""`autellix report`: recorded programs, results and simulated policies as one page in one file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autellix_backend.cli.arguments import above_zero
from autellix_backend.page.single_file import report_html
from autellix_lab.bench.arrivals import rescaled_arrivals, with_unique_ids
from autellix_lab.bench.result_file import ResultFileError, read_result
from autellix_lab.cli.arguments import InputError
from autellix_lab.cli.sim_options import (
    SCHEDULER_NAMES,
    add_engine_options,
    describe_engines,
    make_settings,
    policy_notes,
)
from autellix_lab.report.document import recorded_run, replayed_run, report_document, simulated_run
from autellix_lab.sim.experiment import drain_rate_per_s
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import draw_arrivals
from autellix_lab.workload.trace import ProgramTrace, TraceError
from autellix_lab.workload.trace_files import read_programs

RESULT_SUFFIX = ".json"
MAX_RUNS = 6
"""Runs of one comparison, as many as the page has colours for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs, the output, and how policies are simulated."""
    add = parser.add_argument
    add(
        "inputs",
        nargs="+",
        type=Path,
        metavar="TRACE|RESULT",
        help="recorded traces (.jsonl, .jsonl.gz), or results of `bench replay --out` (.json)",
    )
    add("-o", "--out", type=Path, required=True, metavar="FILE", help="the page to write, as .html")
    add("--title", help="line that names the report (default: the names of the inputs)")
    add(
        "--policies",
        type=_policies,
        default=(),
        metavar="NAME,…",
        help=f"simulate the trace under each of {', '.join(SCHEDULER_NAMES)}, and compare them to the first",
    )
    add(
        "--rho",
        type=above_zero,
        metavar="X",
        help="with --policies: Poisson arrivals at this offered load instead of the recorded times",
    )
    add("--seed", type=int, default=0, help="of such arrivals and of hints (default: 0)")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page; 0 on success, 2 for input that cannot be used."""
    try:
        traces = {
            path: with_unique_ids(read_programs(path)) for path in args.inputs if path.suffix != RESULT_SUFFIX
        }
        title = args.title or ", ".join(path.name for path in args.inputs)
        runs, notes = _runs(args, traces)
        programs = [program for found in traces.values() for program in found]
        document = report_document(title, with_unique_ids(programs), runs, notes)
        args.out.write_text(report_html(title, document), encoding="utf-8")
    except (TraceError, ResultFileError, InputError, OSError) as error:
        print(f"autellix report: {error}", file=sys.stderr)
        return 2
    size = args.out.stat().st_size / 2**20
    counts = f"{len(document['programs'])} programs, {len(runs)} runs"
    print(f"{args.out}: {counts}, {size:.1f} MiB; any browser opens it")
    return 0


def _runs(
    args: argparse.Namespace, traces: dict[Path, list[ProgramTrace]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what is compared: simulated policies if any are given, else what was recorded and replayed."""
    if args.policies:
        if len(args.inputs) != 1 or len(traces) != 1:
            raise InputError("--policies simulates one trace; expected one TRACE and no RESULT")
        [programs] = traces.values()
        return _simulated(args, programs)
    runs = []
    for path in args.inputs:
        if path in traces:
            found = recorded_run(path.stem.removesuffix(".jsonl"), traces[path])
        else:
            found = replayed_run(path.stem, read_result(path))
        if found is not None:
            runs.append(found)
    if len(runs) > MAX_RUNS:
        raise InputError(f"{len(runs)} inputs; expected at most {MAX_RUNS}")
    return runs, []


def _simulated(
    args: argparse.Namespace, programs: Sequence[ProgramTrace]
) -> tuple[list[dict[str, Any]], list[str]]:
    settings = {policy: make_settings(args, programs, policy) for policy in args.policies}
    first = settings[args.policies[0]]
    times_s, how = _arrivals(args, programs, first)
    arrivals = sorted(zip(times_s, programs, strict=True), key=lambda arrival: arrival[0])
    try:
        runs = [simulated_run(policy, simulate(arrivals, each)) for policy, each in settings.items()]
    except ValueError as error:
        raise InputError(str(error)) from error
    notes = [
        f"Simulated, not measured: {describe_engines(first)}; arrivals {how}.",
        *(f"{note[0].upper()}{note[1:]}." for note in policy_notes(args.policies)),
    ]
    return runs, notes


def _arrivals(
    args: argparse.Namespace, programs: Sequence[ProgramTrace], settings: SimSettings
) -> tuple[Sequence[float], str]:
    if args.rho is not None:
        rate_per_s = args.rho * drain_rate_per_s(programs, settings)
        times_s = draw_arrivals("poisson", len(programs), rate_per_s, args.seed)
        return times_s, f"Poisson at an offered load of {args.rho:g}"
    try:
        return rescaled_arrivals(programs, None, args.seed), "as recorded"
    except ValueError as error:
        raise InputError(f"the programs have no recorded arrivals ({error}); expected --rho X") from error


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in SCHEDULER_NAMES:
            raise argparse.ArgumentTypeError(f"{name!r}; expected some of {', '.join(SCHEDULER_NAMES)}")
    if len(names) > MAX_RUNS:
        raise argparse.ArgumentTypeError(f"{len(names)} policies; expected at most {MAX_RUNS}")
    return names
