"""`autellix demo`: compare policies on real engines that play the same agent programs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_lab.bench.backend import BackendError
from autellix_lab.bench.calibrate import CalibrationError
from autellix_lab.bench.replay import ReplayError
from autellix_lab.bench.report import check_plotting, comparison_table, write_json
from autellix_lab.cli.arguments import InputError, add_tree_scale
from autellix_lab.cli.console import lab_extra, progress_bars
from autellix_lab.demo.comparison import PartComparison, comparison_report, run_parts
from autellix_lab.demo.parts import BLOCK_TOKENS, MAX_TOOL_CONTEXT_TOKENS, DemoOptions, demo_parts
from autellix_lab.demo.picture import Panel, write_picture
from autellix_lab.workload.generate import WORKLOADS
from autellix_lab.workload.trace import TraceError

POLICIES = ("fcfs", "boost")
QUICK_PROGRAMS, QUICK_TOOL_PROGRAMS = 9, 24
QUICK_CALIBRATION_TOKENS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "--workload",
        choices=WORKLOADS,
        default="mixed",
        help="kind of the first part's programs (default: mixed)",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="play the programs of a .jsonl or .jsonl.gz trace in the first part",
    )
    add(
        "--programs", type=count, default=39, metavar="N", help="programs per run at saturation (default: 39)"
    )
    add(
        "--tool-programs",
        type=count,
        default=40,
        metavar="N",
        help="programs per run where KV memory is scarce (default: 40)",
    )
    add(
        "--length-scale",
        type=above_zero,
        default=0.25,
        metavar="X",
        help="factor on all lengths (default: 0.25)",
    )
    add_tree_scale(parser, default=0.2)
    add("--rho", type=above_zero, default=2.0, help="offered load at saturation (default: 2)")
    add("--low-rho", type=above_zero, default=0.3, help="offered load below saturation (default: 0.3)")
    add(
        "--kv-rho",
        type=above_zero,
        default=1.0,
        help="offered load where KV memory is scarce, over what fits into it at once (default: 1)",
    )
    add(
        "--kv-blocks",
        type=_kv_blocks,
        default=180,
        metavar="N",
        help=f"blocks of {BLOCK_TOKENS} tokens where KV memory is scarce (default: 180)",
    )
    add("--rounds", type=count, default=3, metavar="N", help="times each policy has its turn (default: 3)")
    add(
        "--policies",
        type=_policies,
        default=POLICIES,
        help="first is the baseline; boost comes with working-set admission (default: fcfs,boost)",
    )
    add("--max-num-seqs", type=count, default=8, metavar="N", help="the engine's batch size (default: 8)")
    add(
        "--beta",
        type=_beta,
        default=16.0,
        help="starvation threshold of policies with levels, wait over service (default: 16)",
    )
    add("--calibration-tokens", type=count, default=6000, metavar="N", help=argparse.SUPPRESS)
    add("--seed", type=int, default=0, help="of programs and arrivals (default: 0)")
    add("--model", default="demo", help="model to serve (default: the generated demo model)")
    add(
        "--out",
        type=Path,
        default=Path("demo-results"),
        metavar="DIR",
        help="results (default: demo-results)",
    )
    add("--json", action="store_true", help="print the report as JSON instead of tables")
    add(
        "--quick", action="store_true", help="one short round of both parts, as a check and not a measurement"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if no call was lost, 1 if any was or a part failed, 2 for a bad argument."""
    console = Console(stderr=args.json)
    options = _options(args)
    try:
        with lab_extra("comparison.png"):
            check_plotting()
        parts = demo_parts(options)
        options.out.mkdir(parents=True, exist_ok=True)
    except (TraceError, InputError, OSError) as error:
        print(f"autellix demo: {error}", file=sys.stderr)
        return 2
    try:
        with _sigterm_interrupts(), progress_bars(console, is_logged=True) as follow:
            found = run_parts(options, parts, follow, console.print)
    except (BackendError, CalibrationError, ReplayError) as error:
        print(f"autellix demo: {error}", file=sys.stderr)
        return 1
    report = comparison_report(options, found)
    write_json(options.out / "comparison.json", report)
    return _show(args, found, report, console)


def _options(args: argparse.Namespace) -> DemoOptions:
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(DemoOptions)}
    if args.quick:
        values["programs"], values["rounds"] = min(args.programs, QUICK_PROGRAMS), 1
        values["tool_programs"] = min(args.tool_programs, QUICK_TOOL_PROGRAMS)
        values["calibration_tokens"] = min(args.calibration_tokens, QUICK_CALIBRATION_TOKENS)
    return DemoOptions(**values)


def _show(
    args: argparse.Namespace, found: Sequence[PartComparison], report: dict[str, Any], console: Console
) -> int:
    lost = report["lost_calls"]
    if not lost:
        write_picture(args.out / "comparison.png", _panels(found))
        for item in found:
            for load in item.loads:
                console.print(comparison_table(load))
    for line in report["verdicts"]:
        console.print(line)
    console.print(f"results in {args.out}/: comparison.json, comparison.png")
    if args.json:
        print(json.dumps(report))
    if lost:
        print(f"autellix demo: {lost} calls were lost: {'; '.join(report['errors'][:5])}", file=sys.stderr)
    return 1 if lost else 0


def _panels(found: Sequence[PartComparison]) -> list[Panel]:
    """Return the first load of each part with a title that names what is short."""
    return [
        (
            f"slots short: {item.loads[0].rho:g} times the work that the engine serves"
            if item.part.kv_tokens is None
            else f"KV memory scarce: {item.part.kv_tokens} tokens",
            item.loads[0],
        )
        for item in found
    ]


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM unwind the stack as Ctrl-C does, so that no backend outlives the demo."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _beta(text: str) -> float:
    return math.inf if text == "inf" else above_zero(text)


def _kv_blocks(text: str) -> int:
    blocks, least = count(text), MAX_TOOL_CONTEXT_TOKENS // BLOCK_TOKENS + 2
    if blocks < least:
        raise argparse.ArgumentTypeError(f"{text}: expected {least} or more, which hold the longest context")
    return blocks


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in LIVE_POLICY_NAMES]
    if unknown or len(names) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected two or more of {', '.join(LIVE_POLICY_NAMES)}")
    return names
