"""`autellix demo`: play agent programs under several policies on a real engine, and compare."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.core.policies import LIVE_POLICY_NAMES
from autellix_backend.gateway.recording.trace import ProgramTrace, TraceError, read_traces
from autellix_lab.bench.backend import BackendError, BackendProcess
from autellix_lab.bench.calibrate import Calibration, CalibrationError, choose_bounds
from autellix_lab.bench.compare import Load, Target, calibrate, compare
from autellix_lab.bench.replay import ReplayError
from autellix_lab.bench.report import (
    LoadComparison,
    comparison_table,
    report_mapping,
    verdicts,
    write_json,
    write_plot,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.cli.arguments import add_tree_scale
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import WORKLOADS, generate_programs

BASELINE = "fcfs"
GOAL = 0.5
"""Ratio of mean program token latency to the baseline's that saturation should show."""
TOLERANCE = 0.05
MAX_CONTEXT_TOKENS = 2048
LOW_LOAD_PARTS = 4
"""There a machine that changes its speed between two turns would be all that shows."""
BLOCK_TOKENS = 32
"""Of a KV block, about as on GPUs: vLLM's 128 on a CPU are longer than many of the demo's prompts."""
LOW_LOAD_SHARE = 0.2
"""Share of the programs played below saturation: the same work takes longer there."""
ACCOUNT_WAIT_S = 5.0
"""Patience of the gateways: a figure in steps needs the account, and a busy machine may stall for a while."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "--workload", choices=WORKLOADS, default="mixed", help="kind of programs to generate (default: mixed)"
    )
    add("--trace", type=Path, metavar="FILE", help="play the programs of a .jsonl or .jsonl.gz trace instead")
    add(
        "--programs",
        type=count,
        default=80,
        metavar="N",
        help="programs per run at saturation (default: 80)",
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
    add("--rounds", type=count, default=3, metavar="N", help="times each policy has its turn (default: 3)")
    add(
        "--policies",
        type=_policies,
        default=(BASELINE, "plas"),
        help="first is the baseline (default: fcfs,plas)",
    )
    add("--max-num-seqs", type=count, default=8, metavar="N", help="the engine's batch size (default: 8)")
    add("--beta", type=_beta, default=16.0, help="starvation threshold, wait over service (default: 16)")
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
    add("--quick", action="store_true", help="one short round: shows that everything works, proves nothing")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if no call was lost, 1 if any was or a part failed, 2 for a bad argument."""
    console = Console(stderr=args.json)
    if args.quick:
        args.programs, args.rounds = min(args.programs, 9), 1
        args.calibration_tokens = min(args.calibration_tokens, 2000)
    try:
        programs = _programs(args)
        args.out.mkdir(parents=True, exist_ok=True)
    except (TraceError, OSError) as error:
        print(f"autellix demo: {error}", file=sys.stderr)
        return 2
    try:
        loads, setting = _measure(args, programs, console)
    except (BackendError, CalibrationError, ReplayError) as error:
        print(f"autellix demo: {error}", file=sys.stderr)
        return 1
    return _report(args, loads, setting, console)


def _measure(
    args: argparse.Namespace, programs: Sequence[ProgramTrace], console: Console
) -> tuple[list[LoadComparison], dict[str, Any]]:
    low = programs[: max(1, round(len(programs) * LOW_LOAD_SHARE))]
    loads = [
        Load(name="saturation", rho=args.rho, programs=programs),
        Load(name="below saturation", rho=args.low_rho, programs=low, parts=LOW_LOAD_PARTS),
    ]
    with contextlib.ExitStack() as stack, _progress(console) as follow:
        stack.enter_context(_sigterm_interrupts())

        def speed_of(target: Target, salt: str) -> Calibration:
            return calibrate(target, programs, args.max_num_seqs, args.calibration_tokens, follow, salt=salt)

        base = _launch(stack, args, args.policies[0], None)
        targets = {args.policies[0]: _ready(base, console)}
        first = targets[args.policies[0]]
        # An engine on CPUs writes its first thousands of tokens at half speed: a first measurement warms it.
        speed_of(first, "warm-up")
        calibration = speed_of(first, "first")
        bounds = choose_bounds(calibration, programs)
        _describe(console, args, programs, calibration, bounds)
        others = {policy: _launch(stack, args, policy, bounds) for policy in args.policies[1:]}
        targets |= {policy: _ready(backend, console) for policy, backend in others.items()}
        for policy in others:
            speed_of(targets[policy], "warm-up")
        compared = compare(
            targets,
            loads,
            lambda turn: speed_of(first, turn),
            rounds=args.rounds,
            seed=args.seed,
            follow=follow,
        )
    return compared, _setting(args, loads, calibration, bounds)


def _programs(args: argparse.Namespace) -> list[ProgramTrace]:
    if args.trace is None:
        found = generate_programs(args.workload, args.programs, args.seed, tree_scale=args.tree_scale)
    else:
        found = read_traces(args.trace)[: args.programs]
        if not found:
            raise TraceError(str(args.trace), "holds no program")
    return [
        fit_program(program, length_scale=args.length_scale, max_context_tokens=MAX_CONTEXT_TOKENS)
        for program in found
    ]


def _launch(
    stack: contextlib.ExitStack, args: argparse.Namespace, policy: str, bounds: tuple[float, ...] | None
) -> BackendProcess:
    scheduler: dict[str, Any] = {"policy": policy, "beta": args.beta}
    if bounds is not None:
        scheduler["bounds"] = list(bounds)
    engine = {
        "max_num_seqs": args.max_num_seqs,
        "extra_args": ["--max-model-len", str(2 * MAX_CONTEXT_TOKENS), "--block-size", str(BLOCK_TOKENS)],
    }
    gateway = {"port": 0, "report_wait_s": ACCOUNT_WAIT_S}
    settings = {"gateway": gateway, "engine": engine, "scheduler": scheduler}
    backend = stack.enter_context(BackendProcess(policy, args.model, settings, args.out))
    backend.launch()
    return backend


def _ready(backend: BackendProcess, console: Console) -> Target:
    console.print(f"starting the {backend.name} backend, log in {backend.log_path}")
    backend.wait_ready()
    return Target(base_url=backend.base_url, model=backend.model())


def _describe(
    console: Console,
    args: argparse.Namespace,
    programs: Sequence[ProgramTrace],
    calibration: Calibration,
    bounds: tuple[float, ...],
) -> None:
    calls = sum(len(program.calls) for program in programs)
    tokens = sum(program.decode_tokens for program in programs)
    console.print(
        f"{len(programs)} programs, {calls} calls, {tokens} tokens; lengths x {args.length_scale:g}\n"
        f"full batch of {args.max_num_seqs}: {calibration.tokens_per_s:.0f} tokens/s "
        f"over {calibration.window_s:.1f} s ({calibration.calls} calls)\n"
        f"level bounds (s of service): {', '.join(f'{bound:g}' for bound in bounds)}; beta {args.beta:g}"
    )


def _report(
    args: argparse.Namespace, loads: list[LoadComparison], setting: dict[str, Any], console: Console
) -> int:
    lost = sum(run.summary.lost_calls for load in loads for run in load.runs)
    errors = {error for load in loads for run in load.runs for error in run.summary.errors}
    lines: list[str] = []
    if not lost:
        lines += verdicts(loads[0], goal=GOAL, tolerance=TOLERANCE)
        lines += verdicts(loads[1], goal=None, tolerance=TOLERANCE)
        write_plot(args.out / "comparison.png", loads)
    mapping = report_mapping(loads, setting) | {
        "verdicts": lines,
        "lost_calls": lost,
        "errors": sorted(errors),
    }
    write_json(args.out / "comparison.json", mapping)
    for load in loads if not lost else []:
        console.print(comparison_table(load))
    for line in lines:
        console.print(line)
    console.print(f"results in {args.out}/: comparison.json, comparison.png")
    if args.json:
        print(json.dumps(mapping))
    if lost:
        print(f"autellix demo: {lost} calls were lost: {'; '.join(sorted(errors)[:5])}", file=sys.stderr)
    return 1 if lost else 0


def _setting(
    args: argparse.Namespace, loads: Sequence[Load], calibration: Calibration, bounds: tuple[float, ...]
) -> dict[str, Any]:
    return {
        "workload": str(args.trace) if args.trace else args.workload,
        "seed": args.seed,
        "length_scale": args.length_scale,
        "tree_scale": args.tree_scale,
        "max_context_tokens": MAX_CONTEXT_TOKENS,
        "max_num_seqs": args.max_num_seqs,
        "rounds": args.rounds,
        "bounds_s": list(bounds),
        # JSON has no infinity.
        "beta": args.beta if math.isfinite(args.beta) else "inf",
        "capacity_tokens_per_s": calibration.tokens_per_s,
        "steps_per_s": calibration.steps_per_s,
        "service_per_token_s": calibration.service_per_token_s,
        "loads": [
            {
                "name": load.name,
                "rho": load.rho,
                "programs": len(load.programs),
                "calls": sum(len(program.calls) for program in load.programs),
                "output_tokens": sum(program.decode_tokens for program in load.programs),
                "programs_per_s": calibration.rate_for(load.rho, load.programs),
            }
            for load in loads
        ],
    }


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int], Callable[[CallResult], None]]]:
    columns = (TextColumn("{task.description:38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def follow(title: str, calls: int) -> Callable[[CallResult], None]:
            if not console.is_terminal:
                # Without a terminal the bars show only at the end; a log should still tell where the demo is.
                console.print(f"{title}: {calls} calls")
            task = progress.add_task(title, total=calls)
            return lambda _: progress.advance(task)

        yield follow


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that no backend outlives the demo."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _beta(text: str) -> float:
    return math.inf if text == "inf" else above_zero(text)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in LIVE_POLICY_NAMES]
    if unknown or len(names) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected two or more of {', '.join(LIVE_POLICY_NAMES)}")
    return names
