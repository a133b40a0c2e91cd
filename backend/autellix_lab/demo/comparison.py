"""The demo: the same programs under several policies, each on a real engine of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autellix_backend.gateway.recording.trace import ProgramTrace, TraceError
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.calibrate import Calibration, choose_bounds
from autellix_lab.bench.compare import Follow, Load, Target, calibrate, compare
from autellix_lab.bench.report import LoadComparison, report_mapping, verdicts
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace_files import read_traces

__all__ = ["Comparison", "DemoOptions", "comparison_report", "demo_programs", "run_comparison"]

GOAL = 0.5
"""Ratio of mean program token latency to the baseline's that saturation should show."""
TOLERANCE = 0.05
MAX_CONTEXT_TOKENS = 2048
LOW_LOAD_PARTS = 4
"""Policies take turns at each part: in long turns, changes of the machine's speed would hide the policies."""
BLOCK_TOKENS = 32
"""KV block size, about as on GPUs: vLLM's 128 on a CPU exceed many of the demo's prompts."""
LOW_LOAD_SHARE = 0.2
"""Share of the programs played below saturation: the same work takes longer there."""
REPORT_WAIT_S = 5.0
"""How long gateways wait for an engine report: figures in steps need it, and a busy machine may stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The demo's programs and settings."""

    policies: Sequence[str]
    """The first is the baseline."""
    workload: str
    trace: Path | None
    programs: int
    length_scale: float
    tree_scale: float
    rho: float
    low_rho: float
    rounds: int
    max_num_seqs: int
    beta: float
    calibration_tokens: int
    seed: int
    model: str
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The results of all policies at both loads."""

    loads: list[LoadComparison]
    offered: Sequence[Load]
    calibration: Calibration
    bounds: tuple[float, ...]


def demo_programs(options: DemoOptions) -> list[ProgramTrace]:
    """Return the programs of the trace or the generator, fitted to a small engine.

    Raises:
        TraceError: if the trace cannot be read or holds no program.
    """
    if options.trace is None:
        found = generate_programs(
            options.workload, options.programs, options.seed, tree_scale=options.tree_scale
        )
    else:
        found = read_traces(options.trace)[: options.programs]
        if not found:
            raise TraceError(str(options.trace), "holds no program")
    return [
        fit_program(program, length_scale=options.length_scale, max_context_tokens=MAX_CONTEXT_TOKENS)
        for program in found
    ]


def run_comparison(
    options: DemoOptions,
    programs: Sequence[ProgramTrace],
    follow: Follow,
    report_progress: Callable[[str], None],
) -> Comparison:
    """Start a backend for each policy and play the programs on all of them in turn.

    Raises:
        BackendError: if a backend does not start.
        CalibrationError: if an engine's speed cannot be measured.
        ReplayError: if the client could not play at all.
    """
    low = programs[: max(1, round(len(programs) * LOW_LOAD_SHARE))]
    loads = [
        Load(name="saturation", rho=options.rho, programs=programs),
        Load(name="below saturation", rho=options.low_rho, programs=low, parts=LOW_LOAD_PARTS),
    ]
    baseline, *others = options.policies
    with contextlib.ExitStack() as stack:

        def speed_of(target: Target, salt: str) -> Calibration:
            slots, tokens = options.max_num_seqs, options.calibration_tokens
            return calibrate(target, programs, slots, tokens, follow, salt=salt)

        targets = {baseline: _ready(_launch(stack, options, baseline, None), report_progress)}
        first = targets[baseline]
        # A CPU engine decodes its first thousands of tokens at half speed: the first measurement warms it up.
        speed_of(first, "warm-up")
        calibration = speed_of(first, "first")
        bounds = choose_bounds(calibration, programs)
        report_progress(_description(options, programs, calibration, bounds))
        backends = {policy: _launch(stack, options, policy, bounds) for policy in others}
        targets |= {policy: _ready(backend, report_progress) for policy, backend in backends.items()}
        for policy in others:
            speed_of(targets[policy], "warm-up")
        compared = compare(
            targets,
            loads,
            lambda turn: speed_of(first, turn),
            rounds=options.rounds,
            seed=options.seed,
            follow=follow,
        )
    return Comparison(loads=compared, offered=loads, calibration=calibration, bounds=bounds)


def comparison_report(options: DemoOptions, comparison: Comparison) -> dict[str, Any]:
    """Return settings, figures, verdicts and lost calls as plain JSON values."""
    summaries = [run.summary for load in comparison.loads for run in load.runs]
    lost = sum(summary.lost_calls for summary in summaries)
    lines: list[str] = []
    if not lost:
        saturated, below = comparison.loads
        lines += verdicts(saturated, goal=GOAL, tolerance=TOLERANCE)
        lines += verdicts(below, goal=None, tolerance=TOLERANCE)
    return report_mapping(comparison.loads, _setting(options, comparison)) | {
        "verdicts": lines,
        "lost_calls": lost,
        "errors": sorted({error for summary in summaries for error in summary.errors}),
    }


def _launch(
    stack: contextlib.ExitStack, options: DemoOptions, policy: str, bounds: tuple[float, ...] | None
) -> BackendProcess:
    scheduler: dict[str, Any] = {"policy": policy, "beta": options.beta}
    if bounds is not None:
        scheduler["bounds"] = list(bounds)
    engine = {
        "max_num_seqs": options.max_num_seqs,
        "extra_args": ["--max-model-len", str(2 * MAX_CONTEXT_TOKENS), "--block-size", str(BLOCK_TOKENS)],
    }
    gateway = {"port": 0, "report_wait_s": REPORT_WAIT_S}
    settings: dict[str, dict[str, Any]] = {"gateway": gateway, "engine": engine, "scheduler": scheduler}
    backend = stack.enter_context(BackendProcess(policy, options.model, settings, options.out))
    backend.launch()
    return backend


def _ready(backend: BackendProcess, report_progress: Callable[[str], None]) -> Target:
    report_progress(f"starting the {backend.name} backend, log in {backend.log_path}")
    backend.wait_ready()
    return Target(base_url=backend.base_url, model=backend.model())


def _description(
    options: DemoOptions,
    programs: Sequence[ProgramTrace],
    calibration: Calibration,
    bounds: tuple[float, ...],
) -> str:
    calls = sum(len(program.calls) for program in programs)
    tokens = sum(program.decode_tokens for program in programs)
    return (
        f"{len(programs)} programs, {calls} calls, {tokens} tokens; lengths x {options.length_scale:g}\n"
        f"full batch of {options.max_num_seqs}: {calibration.tokens_per_s:.0f} tokens/s "
        f"over {calibration.window_s:.1f} s ({calibration.calls} calls)\n"
        f"level bounds (s of service): {', '.join(f'{bound:g}' for bound in bounds)}; beta {options.beta:g}"
    )


def _setting(options: DemoOptions, comparison: Comparison) -> dict[str, Any]:
    calibration = comparison.calibration
    return {
        "workload": str(options.trace) if options.trace else options.workload,
        "seed": options.seed,
        "length_scale": options.length_scale,
        "tree_scale": options.tree_scale,
        "max_context_tokens": MAX_CONTEXT_TOKENS,
        "max_num_seqs": options.max_num_seqs,
        "rounds": options.rounds,
        "bounds_s": list(comparison.bounds),
        # JSON has no infinity.
        "beta": options.beta if math.isfinite(options.beta) else "inf",
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
            for load in comparison.offered
        ],
    }
