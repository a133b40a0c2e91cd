"""`autellix demo`: compare policies on real engines that play the same agent programs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_lab.bench.report import comparison_table, write_json
from autellix_lab.cli.arguments import InputError, add_json, adder, names_of
from autellix_lab.cli.console import lab_extra, progress_bars
from autellix_lab.demo.comparison import PartComparison, comparison_report, run_parts
from autellix_lab.demo.parts import BLOCK_TOKENS, MAX_SCARCE_CONTEXT_TOKENS, SCARCE, DemoOptions, demo_parts
from autellix_lab.demo.picture import Panel, write_picture
from autellix_lab.workload.generate import WORKLOADS

QUICK_PROGRAMS, QUICK_KV_PROGRAMS = 9, 16
QUICK_CALIBRATION_TOKENS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: some of the fields of DemoOptions, with its defaults."""
    usual, declare = DemoOptions(), adder(parser)

    def add(name: str, kind: Callable[[str], Any], text: str, **more: Any) -> None:
        declare(name, text, kind, getattr(usual, name.strip("-").replace("-", "_")), **more)

    add("--workload", str, "kind of the first part's programs", choices=WORKLOADS)
    add("--trace", Path, "play the programs of a .jsonl or .jsonl.gz trace in the first part", metavar="FILE")
    add("--programs", count, "programs per run at saturation", metavar="N")
    add("--kv-workload", str, "kind of the programs where KV memory is scarce", choices=SCARCE)
    add("--kv-programs", count, "programs per run where KV memory is scarce", metavar="N")
    add("--length-scale", above_zero, "factor on all lengths of the first part", metavar="X")
    add("--rho", above_zero, "offered load at saturation")
    blocks = f"blocks of {BLOCK_TOKENS} tokens where KV memory is scarce"
    add("--kv-blocks", _kv_blocks, blocks, metavar="N")
    add("--rounds", count, "times each policy has its turn", metavar="N")
    add(
        "--policies",
        partial(names_of, LIVE_POLICY_NAMES, least=2),
        "first is the baseline; boost comes with working-set admission",
    )
    add("--max-num-seqs", count, "the engine's batch size", metavar="N")
    add("--seed", int, "of programs and arrivals")
    add("--model", str, "model to serve; demo is generated")
    add("--out", Path, "results", metavar="DIR")
    quick = "one short round of both parts, as a check and not a measurement"
    parser.add_argument("--quick", action="store_true", help=quick)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if no call was lost, 1 if any was.

    Raises:
        CommandError: for a bad argument, or if a part failed.
    """
    console = Console(stderr=args.json)
    options = options_of(args)
    with lab_extra("comparison.png"):
        importlib.import_module("matplotlib.figure")
    parts = demo_parts(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(error)) from error
    with _sigterm_interrupts(), progress_bars(console, is_logged=True) as follow:
        found = run_parts(options, parts, follow, console.print)
    report = comparison_report(options, found)
    write_json(options.out / "comparison.json", report)
    return _show(args, found, report, console)


def options_of(args: argparse.Namespace) -> DemoOptions:
    """Return the demo's options; `--quick` plays fewer programs, once."""
    names = {field.name for field in dataclasses.fields(DemoOptions)}
    options = DemoOptions(**{name: value for name, value in vars(args).items() if name in names})
    if not args.quick:
        return options
    return dataclasses.replace(
        options,
        rounds=1,
        programs=min(args.programs, QUICK_PROGRAMS),
        kv_programs=min(args.kv_programs, QUICK_KV_PROGRAMS),
        calibration_tokens=QUICK_CALIBRATION_TOKENS,
    )


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


def _kv_blocks(text: str) -> int:
    blocks, least = count(text), MAX_SCARCE_CONTEXT_TOKENS // BLOCK_TOKENS + 2
    if blocks < least:
        raise argparse.ArgumentTypeError(f"{text}: expected {least} or more, which hold the longest context")
    return blocks
