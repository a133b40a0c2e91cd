"""`autellix demo`: compare policies on real engines that play the same agent programs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_lab.bench.compare import Follow
from autellix_lab.bench.report import write_json
from autellix_lab.cli.arguments import InputError, add_json, adder, names_of
from autellix_lab.cli.console import lab_extra
from autellix_lab.demo.comparison import comparison_report, run_parts
from autellix_lab.demo.parts import BLOCK_TOKENS, MIN_KV_BLOCKS, SCARCE, DemoOptions, demo_parts
from autellix_lab.demo.picture import write_picture
from autellix_lab.demo.summary import last_screen, write_details
from autellix_lab.workload.generate import WORKLOADS

QUICK_PROGRAMS, QUICK_KV_PROGRAMS = 9, 16
QUICK_CALIBRATION_TOKENS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: some of the fields of DemoOptions, with its defaults."""
    usual, declare = DemoOptions(), adder(parser)

    def add(name: str, kind: Callable[[str], Any], text: str, **more: Any) -> None:
        declare(name, text, kind, getattr(usual, name.strip("-").replace("-", "_")), **more)

    add("--workload", str, "kind of the programs where slots are scarce", choices=WORKLOADS)
    add(
        "--trace",
        Path,
        "play the programs of a .jsonl or .jsonl.gz trace where slots are scarce",
        metavar="FILE",
    )
    add("--programs", count, "programs per run where slots are scarce", metavar="N")
    add("--kv-workload", str, "kind of the programs where KV memory is scarce", choices=SCARCE)
    add("--kv-programs", count, "programs per run where KV memory is scarce", metavar="N")
    add("--length-scale", above_zero, "factor on all lengths where slots are scarce", metavar="X")
    add("--rho", above_zero, "offered load where slots are scarce")
    blocks = f"blocks of {BLOCK_TOKENS} tokens where KV memory is scarce (default: the workload's)"
    parser.add_argument("--kv-blocks", type=_kv_blocks, help=blocks, metavar="N")
    add("--rounds", count, "rounds, in which each policy runs once", metavar="N")
    add(
        "--policies",
        partial(names_of, LIVE_POLICY_NAMES, least=2),
        "policies to compare with the first, separated by commas; fcfs is vLLM without Autellix",
    )
    add("--max-num-seqs", count, "the engine's batch size", metavar="N")
    add("--seed", int, "seed of programs and arrivals")
    add("--model", str, "model to serve; demo is generated")
    add("--out", Path, "folder for the results", metavar="DIR")
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
    start_s = time.monotonic()
    runs = len(parts) * options.rounds * len(options.policies)
    with _sigterm_interrupts(), follow_runs(console, runs) as (follow, report_progress):
        found = run_parts(options, parts, follow, report_progress)
    report = comparison_report(options, found)
    write_json(options.out / "comparison.json", report)
    write_details(options.out / "report.txt", found, report)
    if not report["lost_calls"]:
        write_picture(options.out / "comparison.png", [item.load for item in found])
    for line in last_screen(options, found, report, time.monotonic() - start_s):
        # Paths stay whole, so that they can be copied.
        console.print(line, highlight=False, soft_wrap=isinstance(line, Text))
    if args.json:
        print(json.dumps(report))
    return 1 if report["lost_calls"] else 0


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


@contextlib.contextmanager
def follow_runs(console: Console, runs: int) -> Iterator[tuple[Follow, Callable[[str], None]]]:
    """Show one line that moves, on a terminal; the lines of `report_progress` stay above it."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=runs)

        def follow(title: str, calls: int) -> Callable[[object], None]:
            progress.update(task, description=title)
            return lambda _: progress.advance(task, 1 / calls)

        def report_progress(line: str) -> None:
            progress.update(task, description="starting and warming up")
            console.print(line, highlight=False)

        yield follow, report_progress


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
    blocks = count(text)
    if blocks < MIN_KV_BLOCKS:
        raise argparse.ArgumentTypeError(f"{text}: expected {MIN_KV_BLOCKS} or more")
    return blocks
