"""Options that the actions of `autellix sim` share, and the settings built from them."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autellix_backend.cli.arguments import above_zero, count
from autellix_backend.cli.options import add_preset_option, add_setting_options, settings_from_args
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.names import POLICY_NAMES
from autellix_backend.core.policies import make_policy
from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_lab.cli.arguments import (
    InputError,
    add_fit_options,
    add_load_options,
    add_tree_scale,
    adder,
    fit_of,
    load_options,
    numbers,
)
from autellix_lab.sim.baselines import BASELINE_NAMES
from autellix_lab.sim.bounds import choose_bounds
from autellix_lab.sim.experiment import BURST_PROGRAMS, SIM_ARRIVALS
from autellix_lab.sim.model import RESUME_KINDS, SWAP_KINDS, EngineModel
from autellix_lab.sim.presets import PRESETS, find_engine
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.workload.fit import apply_fit, describe_fit
from autellix_lab.workload.generate import WORKLOADS, generate_programs
from autellix_lab.workload.loaders import load
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import not_empty

DEFAULT_MODEL = "llama3.1-8b-a100"
DEFAULT_PROGRAMS = 200
"""Generated programs of one run."""
DEFAULT_ARRIVALS = "poisson"
MAX_CONTEXT_TOKENS = 131072
"""Context window of Llama 3.1, the presets' models."""
OFFERED_LOAD = (
    "offered load: arriving work over the capacity with full batches and a perfect prefix cache; an engine "
    "with fewer cache hits saturates below 1"
)
CLAIRVOYANT = "knows what each program still needs, which no engine can: a bound to compare with"
SIMULATED_ONLY = "is another system's scheduler by its published rules, simulated only: no engine runs it"
SCHEDULER_NAMES = (*POLICY_NAMES, *BASELINE_NAMES)
"""The schedulers of a simulation: the policies, and the schedulers of other systems."""

# Fields of the engine model that have an option of their own.
_OVERRIDES = ("max_num_seqs", "token_budget", "kv_blocks", "resume", "swap")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Declare the programs and how they are fitted."""
    add = adder(parser)
    add("source", f"{', '.join(WORKLOADS)} to generate, or a trace file or folder", metavar="SOURCE")
    size = f"programs of a run (default: {DEFAULT_PROGRAMS} generated, or all of a trace)"
    parser.add_argument("-n", "--programs", type=count, metavar="N", help=size)
    add("--seed", "seed of the programs, arrivals and hints", int, 0)
    add_tree_scale(parser)
    add_fit_options(parser, max_context=MAX_CONTEXT_TOKENS)
    add_load_options(parser)
    add("--arrivals", "how programs arrive", default=DEFAULT_ARRIVALS, choices=SIM_ARRIVALS)
    add("--burst", "programs of one burst of burst_idle", count, BURST_PROGRAMS, metavar="N")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Declare the engines and their scheduler."""
    add, flag = adder(parser), functools.partial(parser.add_argument, action="store_true")
    engines = f"engine: {', '.join(PRESETS)}, or a file of `sim calibrate`"
    add("--model", engines, default=DEFAULT_MODEL, metavar="PRESET|FILE.json")
    add("--max-num-seqs", "calls in a step (default: the engine's)", count, metavar="N")
    add("--token-budget", "tokens in a step (default: the engine's)", count, metavar="N")
    add("--kv-blocks", "KV blocks (default: the engine's)", count, metavar="N")
    add("--resume", "how preempted calls resume (default: the engine's)", choices=RESUME_KINDS)
    host = "host memory of each engine for KV blocks, in GB; implies --resume host (default: none)"
    add("--host-memory", host, above_zero, metavar="GB")
    add("--swap", "how blocks are swapped (default: the engine's)", choices=SWAP_KINDS)
    add("--engines", "replicas (default: 1, or one for each speed)", count, metavar="N")
    speeds = "how many times as fast as the model each engine is, as 1,1,2,2 (default: all alike)"
    add("--engine-speeds", speeds, _speeds, (), metavar="X,…")
    add_preset_option(parser)
    add_setting_options(parser, "--balancer", "--bounds", "--beta", "--preemption", "--period-steps")
    add("--quanta", "time quantum of each level, s (default: its width)", _quanta, metavar="S,…")
    flag("--auto-bounds", help="from half a mean call on this engine, each next doubled")
    flag("--no-demotion", help="calls keep the level that they arrived at")
    private = "compute each program's system prefix on its own (default: programs of one class share it)"
    flag("--private-prefixes", help=private)
    hints = "clients hint the remaining tokens with a log-normal error of this sigma; 0 is exact"
    add("--hints", f"{hints} (default: no hints)", float, metavar="SIGMA")


def load_pool(args: argparse.Namespace, runs: int = 1) -> list[ProgramTrace]:
    """Return the fitted programs that runs pick theirs from.

    Args:
        args: of `add_source_options`.
        runs: number of runs; as many times the programs of one run are generated.

    Raises:
        TraceError, TokenizerError: if a trace cannot be read.
        InputError: if the bounds leave no room for a call.
    """
    if args.source in WORKLOADS:
        wanted = runs * run_size(args, ())
        programs = generate_programs(args.source, wanted, args.seed, tree_scale=args.tree_scale)
    else:
        programs = not_empty(load(Path(args.source), args.format, load_options(args)), args.source)
    fit = fit_of(args)
    return [apply_fit(program, fit) for program in programs]


def run_size(args: argparse.Namespace, pool: Sequence[ProgramTrace]) -> int:
    """Return the number of programs of one run."""
    return int(args.programs or (DEFAULT_PROGRAMS if args.source in WORKLOADS else len(pool)))


def fit_note(args: argparse.Namespace) -> str:
    """Return one line about how the programs were fitted."""
    return describe_fit(fit_of(args))


def make_settings(
    args: argparse.Namespace, programs: Sequence[ProgramTrace], policy: str | None = None
) -> SimSettings:
    """Return the settings of a simulation; without a policy, that of the settings.

    Raises:
        ModelError: if the engine is unknown or its file cannot be used.
        SettingsError: if the scheduler's settings cannot be used.
        InputError: if options do not go together.
    """
    try:
        model, served = _engine(args), settings_from_args(args)
        settings = SimSettings(
            model=model,
            scheduler=_scheduler(args, served.scheduler, model, programs),
            engines=args.engines or len(args.engine_speeds) or 1,
            engine_speeds=args.engine_speeds,
            balancer=served.balancer.name,
            shares_prefixes=not args.private_prefixes,
            hint_sigma=args.hints,
            seed=args.seed,
        )
        return settings if policy is None else with_policy(settings, policy)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise InputError(str(error)) from error


def with_policy(settings: SimSettings, name: str) -> SimSettings:
    """Return the settings with another policy, or with another system's scheduler.

    Raises:
        ValueError: if there are several engines and that system's scheduler is simulated for one.
    """
    if name in BASELINE_NAMES:
        return replace(settings, baseline=name)
    return replace(settings, baseline=None, scheduler=replace(settings.scheduler, policy=name))


def policy_notes(names: Sequence[str]) -> list[str]:
    """Return a line for each policy that no engine can run, and for each that is another system's."""
    return [
        f"{name} {SIMULATED_ONLY if name in BASELINE_NAMES else CLAIRVOYANT}"
        for name in names
        if name in BASELINE_NAMES or make_policy(name).is_clairvoyant
    ]


def describe_settings(args: argparse.Namespace, settings: SimSettings) -> dict[str, object]:
    """Return the setting as plain JSON values."""
    return {
        "source": args.source,
        "fit": fit_note(args),
        "tree_scale": args.tree_scale,
        "arrivals": args.arrivals,
        "burst": args.burst if args.arrivals == "burst_idle" else None,
        "seed": args.seed,
        "baseline": settings.baseline,
        "engines": settings.engines,
        "engine_speeds": list(settings.engine_speeds),
        "balancer": settings.balancer,
        "shares_prefixes": settings.shares_prefixes,
        "hints": settings.hint_sigma,
        "model": settings.model.to_mapping(),
        "scheduler": scheduler_to_mapping(settings.scheduler),
    }


def describe_engines(settings: SimSettings) -> str:
    """Return one line about the engines and the scheduler."""
    model, scheduler = settings.model, settings.scheduler
    copies = f"{settings.engines} x {model.name}, {settings.balancer}" if settings.engines > 1 else model.name
    if settings.engine_speeds:
        copies += f", speeds {', '.join(f'{speed:g}' for speed in settings.engine_speeds)}"
    bounds = ", ".join(f"{bound:g}" for bound in scheduler.bounds)
    return (
        f"{copies}; batch of {model.max_num_seqs}; level bounds (s of service): {bounds}; "
        f"beta {scheduler.beta:g}; decides every {scheduler.period_steps} step(s)"
        f"{'' if scheduler.demotes else '; no demotion'}"
    )


def _engine(args: argparse.Namespace) -> EngineModel:
    given = {name: getattr(args, name) for name in _OVERRIDES if getattr(args, name) is not None}
    model = replace(find_engine(args.model), **given)
    if args.host_memory is None:
        return model
    if args.resume not in (None, "host"):
        raise InputError(f"--host-memory has no meaning with --resume {args.resume}")
    return model.with_host(args.host_memory)


def _scheduler(
    args: argparse.Namespace, scheduler: SchedulerConfig, model: EngineModel, programs: Sequence[ProgramTrace]
) -> SchedulerConfig:
    if args.auto_bounds:
        scheduler = replace(scheduler, bounds=choose_bounds(model, programs))
    return replace(scheduler, demotes=not args.no_demotion, quanta=args.quanta)


def _quanta(text: str) -> tuple[float, ...]:
    return numbers(text, example="0.25,0.5,1")


def _speeds(text: str) -> tuple[float, ...]:
    return numbers(text, example="1,1,2,2")
