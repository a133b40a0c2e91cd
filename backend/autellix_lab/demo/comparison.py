"""The demo: the same programs under several policies, each on a real engine of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autellix_backend.core.policies import make_policy
from autellix_lab.bench.backend import BackendProcess, PlainBackend
from autellix_lab.bench.calibrate import Calibration, choose_bounds
from autellix_lab.bench.compare import Follow, Target, calibrate, compare
from autellix_lab.bench.report import LoadComparison, losses, report_mapping, targets
from autellix_lab.demo.parts import BLOCK_TOKENS, GOALS, MAX_CONTEXT_TOKENS, PLAIN, DemoOptions, Part

TOLERANCE = 0.05

ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartComparison:
    """The results of all policies in one part."""

    part: Part
    load: LoadComparison
    calibration: Calibration
    bounds: tuple[float, ...]
    """Level bounds (s); none if no policy has levels."""


def run_parts(
    options: DemoOptions, parts: Iterable[Part], follow: Follow, report_progress: ReportProgress
) -> list[PartComparison]:
    """Play each part in turn; its engines end before those of the next start.

    Args:
        options: The demo's settings.
        parts: The parts.
        follow: Follows each run with a progress bar; calibrations have none.
        report_progress: Receives lines about the progress.

    Raises:
        BackendError: if a backend does not start.
        CalibrationError: if an engine's speed cannot be measured.
        ReplayError: if the client could not play at all.
    """
    return [_run_part(options, part, follow, report_progress) for part in parts]


def _run_part(
    options: DemoOptions, part: Part, follow: Follow, report_progress: ReportProgress
) -> PartComparison:
    baseline, *others = options.policies
    levelled = [policy for policy in others if make_policy(policy).has_levels]

    def speed_of(target: Target, salt: str) -> Calibration:
        slots, tokens = part.calibration_slots, part.calibration_tokens
        return calibrate(target, part.calibration, slots, tokens, _unfollowed, salt=salt)

    def start(stack: contextlib.ExitStack, policies: Sequence[str]) -> dict[str, Target]:
        backends = {policy: _launch(stack, options, part, policy, bounds) for policy in policies}
        for backend in backends.values():
            backend.wait_ready()
        found = {
            policy: Target(base_url=backend.base_url, model=backend.model(), engine_url=backend.engine_url)
            for policy, backend in backends.items()
        }
        for watched in [policy for policy in found if policy != PLAIN][-1:]:
            report_progress(f"{part.load.name}: watch {watched} at {found[watched].base_url}/autellix/")
        # A CPU engine decodes its first thousands of tokens at half speed.
        for target in found.values():
            speed_of(target, "warm-up")
        return found

    bounds: tuple[float, ...] = ()
    with contextlib.ExitStack() as stack:
        report_progress(f"{part.load.name}: starting an engine for each policy")
        targets_found = start(stack, [policy for policy in options.policies if policy not in levelled])
        calibration = speed_of(targets_found[baseline], "first")
        if any(make_policy(policy).has_levels for policy in options.policies):
            bounds = choose_bounds(calibration, part.load.programs)
        if levelled:
            targets_found |= start(stack, levelled)
        load = compare(
            {policy: targets_found[policy] for policy in options.policies},
            part.load,
            calibration,
            rounds=options.rounds,
            seed=options.seed,
            follow=follow,
        )
    return PartComparison(part=part, load=load, calibration=calibration, bounds=bounds)


def comparison_report(options: DemoOptions, found: Sequence[PartComparison]) -> dict[str, Any]:
    """Return settings, figures, losses, targets and lost calls as plain JSON values."""
    loads = [item.load for item in found]
    summaries = [run.summary for load in loads for run in load.runs]
    lost = sum(summary.lost_calls for summary in summaries)
    setting = {
        **dataclasses.asdict(options),
        "out": str(options.out),
        "trace": None if options.trace is None else str(options.trace),
        "parts": [_part_setting(item) for item in found],
    }
    return report_mapping(loads, setting) | {
        "losses": [] if lost else [line for load in loads for line in losses(load, tolerance=TOLERANCE)],
        "targets": [] if lost else [line for load in loads for line in targets(load, GOALS[load.name])],
        "lost_calls": lost,
        "errors": sorted({error for summary in summaries for error in summary.errors}),
    }


def _launch(
    stack: contextlib.ExitStack, options: DemoOptions, part: Part, policy: str, bounds: tuple[float, ...]
) -> BackendProcess:
    max_tokens = 2 * MAX_CONTEXT_TOKENS
    extra_args = ["--block-size", str(BLOCK_TOKENS)]
    if part.kv_tokens is not None:
        # vLLM refuses a context that is longer than its memory.
        max_tokens = min(max_tokens, part.kv_tokens)
        extra_args += ["--num-gpu-blocks-override", str(part.kv_blocks)]
    extra_args += ["--max-model-len", str(max_tokens)]
    engine: dict[str, Any] = {"max_num_seqs": options.max_num_seqs, "extra_args": extra_args}
    name = f"{part.name}-{policy}"
    server: BackendProcess
    if policy == PLAIN:
        server = PlainBackend(name, options.model, engine, options.out)
    else:
        scheduler = _scheduler(options, policy, bounds)
        # Nobody waits for the answers of a demo that is interrupted.
        gateway = {"port": 0, "shutdown_grace_s": 10.0}
        settings = {"gateway": gateway, "engine": engine, "scheduler": scheduler}
        server = BackendProcess(name, options.model, settings, options.out)
    stack.enter_context(server).launch()
    return server


def _scheduler(options: DemoOptions, policy: str, bounds: tuple[float, ...]) -> dict[str, Any]:
    """Return a policy's settings: `boost` comes with admission by working set, as it is served."""
    found: dict[str, Any] = {"policy": policy, "admission": "working_set" if policy == "boost" else "none"}
    if make_policy(policy).has_levels:
        found["beta"] = options.beta
        if bounds:
            found["bounds"] = list(bounds)
    return found


def _part_setting(item: PartComparison) -> dict[str, Any]:
    part, calibration = item.part, item.calibration
    return {
        "name": part.name,
        "length_scale": part.length_scale,
        "kv_tokens": part.kv_tokens,
        "bounds_s": list(item.bounds),
        "capacity_tokens_per_s": calibration.tokens_per_s,
        "step_s": calibration.step_s,
        "programs": len(part.load.programs),
        "calls": part.load.calls,
        "output_tokens": sum(program.decode_tokens for program in part.load.programs),
        "programs_per_s": calibration.rate_for(part.load.rho, part.load.programs),
    }


def _unfollowed(_title: str, _calls: int) -> Callable[[object], None]:
    return lambda _: None
