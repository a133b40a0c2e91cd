"""Play programs on real engines under several policies, and beside each ratio state the simulator's.

    python benchmarks/simulated_against_real.py [--workloads chat,mixed,tools] [--policies fcfs,boost,plas]
                                                [--rounds 3] [--programs 40] [--json]

Each workload is played on one engine per policy, all up at once; in each round the policies take turns with
the same programs, arrivals and prompts. `tools` has scarce KV memory, as the second part of the demo.
Arrivals come at `--rho` times the capacity, which is measured in each round.

After each run an engine model is fitted to that run's own receipts, and the simulator plays the same programs
at the same times: so the machine's speed in that turn is part of the prediction. "At equal speed" both
policies are simulated with the model of the first one, as on a machine that does not change.
What the client and the gateway add to a call is a gap before each call. Sizes are not learned in the
simulation, and every simulated run begins on a fresh engine.

    python benchmarks/simulated_against_real.py --seeds 30 --replay DIR

draws other arrivals for the programs of a finished measurement in DIR, with the model fitted there, and
states the spread of the ratios: what chance does to a run of so many programs. `--refit DIR` fits and
simulates it again, with a changed simulator say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.core.policies import make_policy
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.calibrate import choose_bounds
from autellix_lab.bench.compare import Target, calibrate
from autellix_lab.bench.metrics import RunSummary, summarise
from autellix_lab.bench.mixes import measured_calls, preempted_calls
from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.parts import BLOCK_TOKENS, MAX_CONTEXT_TOKENS, DemoOptions, Part, demo_parts
from autellix_lab.sim import simulation
from autellix_lab.sim.calibrate import FitError, fit_model
from autellix_lab.sim.engine import Decision, SimEngine
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.trace import ProgramTrace

TOKEN_BUDGET = 2048
WORKLOADS = ("chat", "mixed", "tools")
LARGEST_DEVIATION = 0.15
FIGURES = tuple(
    (f"{metric}_{unit}", statistic)
    for unit in ("steps", "s")
    for metric, statistic in (("token_latency", "mean"), ("latency", "mean"), ("latency", "p95"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """An engine as one run shows it."""

    model: EngineModel
    overhead_s: float
    """A call's time outside the engine."""


class CountingEngine(SimEngine):
    """A simulated engine that records its steps by time."""

    instances: ClassVar[list[CountingEngine]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ends: list[tuple[float, int]] = [(0.0, 0)]
        self.cached: dict[str, int] = {}
        self.instances.append(self)

    def begin(self, now: float) -> float | None:
        """Record where a stretch begins."""
        end_s = super().begin(now)
        self.ends.append((now, self.batch.steps))
        return end_s

    def end(self, now: float) -> Any:
        """Record where a stretch ended."""
        done = super().end(now)
        self.ends.append((now, self.batch.steps))
        self.cached |= {call.call_id: call.cached_tokens for call in done}
        return done


def play_simulated(
    arrivals_s: Sequence[float],
    programs: Sequence[ProgramTrace],
    fitted: Fitted,
    scheduler: SchedulerConfig,
) -> list[CallResult]:
    """Simulate, and return the calls as a client of a real backend would have seen them."""
    log: list[Decision] = []
    delayed = [_delayed(program, fitted.overhead_s) for program in programs]
    settings = simulation.SimSettings(model=fitted.model, scheduler=scheduler)
    CountingEngine.instances.clear()
    with mock.patch.object(simulation, "SimEngine", CountingEngine):
        simulation.simulate(
            zip(arrivals_s, delayed, strict=True), settings, log=lambda _, decision: log.append(decision)
        )
    (engine,) = CountingEngine.instances
    calls: dict[str, dict[str, float]] = {}
    stops: dict[str, int] = {}
    for event, call_id, at in log:
        calls.setdefault(call_id, {})[event] = at
        stops[call_id] = stops.get(call_id, 0) + (event == "preempt")
    return [
        replace(
            _result(call_id, programs, times, stops[call_id], fitted.overhead_s, engine.ends),
            cached_tokens=engine.cached[call_id],
        )
        for call_id, times in calls.items()
    ]


def steps_by(ends: Sequence[tuple[float, int]], at_s: float) -> int:
    """Return the steps that had ended by a time; the steps between two marks are equally long."""
    low = bisect_right(ends, at_s + 1e-9, key=lambda end: end[0])
    before_s, before = ends[low - 1]
    if low == len(ends) or ends[low][1] == before:
        return before
    after_s, after = ends[low]
    return before + math.floor((after - before) * (at_s - before_s) / (after_s - before_s) + 1e-6)


def _delayed(program: ProgramTrace, overhead_s: float) -> ProgramTrace:
    """Return what the client plays: words of its own stand for an answer in later prompts."""
    calls = []
    for call in program.calls:
        shared = call.shared_prefix_tokens
        if call.prefix_from is not None:
            shared = min(shared, program.calls[call.prefix_from].prefill_tokens)
        gap_s = (call.gap_before_s or 0.0) + overhead_s
        calls.append(replace(call, gap_before_s=gap_s, shared_prefix_tokens=shared))
    return replace(program, calls=tuple(calls))


def _result(
    call_id: str,
    programs: Sequence[ProgramTrace],
    times: Mapping[str, float],
    preemptions: int,
    overhead_s: float,
    ends: Sequence[tuple[float, int]],
) -> CallResult:
    number, call_number = map(int, call_id.split("."))
    call = programs[number].calls[call_number]
    return CallResult(
        program=programs[number].program_id,
        call=call.id,
        thread=call.thread,
        submit_s=times["arrive"] - overhead_s,
        finish_s=times["finish"],
        prompt_tokens=call.prefill_tokens,
        output_tokens=max(1, call.decode_tokens),
        receipt={
            "arrival_step": steps_by(ends, times["arrive"]),
            "finish_step": steps_by(ends, times["finish"]),
            "preemptions": preemptions,
        },
    )


def fit_run(results: Sequence[CallResult], part: Part, slots: int) -> Fitted | None:
    """Fit an engine to the receipts of a run; None if they do not determine it."""
    try:
        fit = fit_model(measured_calls("run", results), preempted_calls("run", results))
    except FitError:
        return None
    outside = [
        result.response_s - service_s - (result.receipt_number("wait_s") or 0.0)
        for result in results
        if (service_s := result.receipt_number("service_s")) is not None
    ]
    return Fitted(
        model=fit.engine_model(
            "fitted",
            slots,
            token_budget=TOKEN_BUDGET,
            block_tokens=BLOCK_TOKENS,
            kv_blocks=None if part.kv_blocks is None else part.kv_blocks - 1,
        ),
        overhead_s=max(0.0, statistics.median(outside)),
    )


def part_of(workload: str, args: argparse.Namespace) -> Part:
    """Return a workload as a part of the demo, with one load."""
    ample, short = demo_parts(
        DemoOptions(
            policies=args.policies,
            workload="mixed" if workload == "tools" else workload,
            trace=None,
            programs=args.programs,
            tool_programs=args.programs,
            length_scale=0.25,
            tree_scale=0.2,
            rho=args.rho,
            low_rho=0.3,
            kv_rho=args.kv_rho,
            kv_blocks=180,
            rounds=args.rounds,
            max_num_seqs=args.max_num_seqs,
            beta=16.0,
            calibration_tokens=args.calibration_tokens,
            seed=args.seed,
            model=args.model,
            out=args.out,
        )
    )
    return short if workload == "tools" else ample


def scheduler_of(policy: str, bounds: Sequence[float]) -> dict[str, Any]:
    """Return a policy's settings; `boost` comes with admission by working set, as it is served."""
    found: dict[str, Any] = {"policy": policy, "admission": "auto"}
    if make_policy(policy).has_levels:
        found |= {"beta": 16.0, "bounds": list(bounds)}
    return found


def _backend(
    part: Part, workload: str, policy: str, bounds: Sequence[float], args: argparse.Namespace
) -> BackendProcess:
    extra_args = ["--block-size", str(BLOCK_TOKENS), "--max-num-batched-tokens", str(TOKEN_BUDGET)]
    most = 2 * MAX_CONTEXT_TOKENS
    if part.kv_tokens is not None:
        most = min(most, part.kv_tokens)
        extra_args += ["--num-gpu-blocks-override", str(part.kv_blocks)]
    settings = {
        "gateway": {"port": 0},
        "engine": {
            "max_num_seqs": args.max_num_seqs,
            "extra_args": [*extra_args, "--max-model-len", str(most)],
        },
        "scheduler": scheduler_of(policy, bounds),
    }
    return BackendProcess(f"{workload}-{policy}", args.model, settings, args.out)


def measure(workload: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Play a workload's rounds and simulate each run; return one entry per round."""
    part = part_of(workload, args)
    (load, *_) = part.loads

    def speed_of(target: Target, salt: str) -> Any:
        return calibrate(
            target, part.calibration, part.calibration_slots, part.calibration_tokens, _silent, salt=salt
        )

    with contextlib.ExitStack() as stack:
        bounds: tuple[float, ...] = ()
        targets: dict[str, Target] = {}
        levelled = [policy for policy in args.policies if make_policy(policy).has_levels]
        plain = [policy for policy in args.policies if policy not in levelled]
        for policies in (plain, levelled):
            backends = {
                policy: stack.enter_context(_backend(part, workload, policy, bounds, args))
                for policy in policies
            }
            for backend in backends.values():
                backend.launch()
            for policy, backend in backends.items():
                backend.wait_ready(600)
                targets[policy] = Target(base_url=backend.base_url, model=backend.model())
                for number in range(part.warm_ups):
                    speed = speed_of(targets[policy], f"warm-up {number}")
            bounds = choose_bounds(speed, part.programs) if levelled and not bounds else bounds
        rounds = []
        for number in range(1, args.rounds + 1):
            speed = speed_of(targets[args.policies[0]], f"round {number}")
            rate_per_s = speed.rate_for(load.rho, load.programs)
            arrivals_s = poisson_arrivals(len(load.programs), rate_per_s, args.seed + number)
            runs = {}
            for policy in args.policies:
                target = targets[policy]
                print(f"{workload}, round {number}, {policy}", file=sys.stderr, flush=True)
                runs[policy] = replay(
                    ReplayJob(
                        base_url=target.base_url,
                        model=target.model,
                        programs=load.programs,
                        arrivals_s=arrivals_s,
                        salt=f"{args.seed}:{workload}:{number}",
                    )
                )
            rounds.append(compared(part, arrivals_s, runs, bounds, args))
        return rounds


def compared(
    part: Part,
    arrivals_s: Sequence[float],
    runs: Mapping[str, Sequence[CallResult]],
    bounds: Sequence[float],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Return one round's figures: real, simulated at each turn's speed, and at equal speed."""
    programs = part.loads[0].programs
    first = args.policies[0]
    base = fit_run(runs[first], part, args.max_num_seqs)
    if base is None:
        raise FitError(f"the run of {first} does not determine a model")
    entry: dict[str, Any] = {"arrivals_s": list(arrivals_s), "policies": {}}
    for policy, results in runs.items():
        fitted = fit_run(results, part, args.max_num_seqs) or base
        config = SchedulerConfig(**scheduler_of(policy, bounds))
        sides = {"real": results, "simulated": play_simulated(arrivals_s, programs, fitted, config)}
        sides["equal speed"] = play_simulated(arrivals_s, programs, base, config)
        summaries = {name: summarise(programs, arrivals_s, calls) for name, calls in sides.items()}
        if summaries["real"].lost_calls:
            raise RuntimeError(f"{policy}: calls were lost: {summaries['real'].errors}")
        entry["policies"][policy] = {
            "model": fitted.model.to_mapping(),
            "overhead_s": fitted.overhead_s,
            "scheduler": scheduler_of(policy, bounds),
            "figures": {name: _figures(summary) for name, summary in summaries.items()},
            "cached_share": {
                name: summary.totals["cached_tokens"] / summary.totals["prompt_tokens"]
                for name, summary in summaries.items()
            },
            "preemptions": {name: summary.totals["preemptions"] for name, summary in summaries.items()},
            "calls": [asdict(result) for result in results],
        }
    return entry


def _figures(summary: RunSummary) -> dict[str, float]:
    return {f"{metric} {statistic}": summary.metrics[metric][statistic] for metric, statistic in FIGURES}


def ratio_lines(workload: str, rounds: Sequence[Mapping[str, Any]], policies: Sequence[str]) -> list[str]:
    """Return the ratios to the first policy: by round real and simulated, and their medians' deviation."""
    lines = []
    first, *others = policies
    for policy in others:
        for metric, statistic in FIGURES:
            name = f"{metric} {statistic}"
            sides = {}
            for side in ("real", "simulated", "equal speed"):
                sides[side] = [
                    entry["policies"][policy]["figures"][side][name]
                    / entry["policies"][first]["figures"][side][name]
                    for entry in rounds
                ]
            real, simulated, equal = (statistics.median(sides[side]) for side in sides)
            lines.append(
                f"{workload:<6} {policy:<6} {name:<26} real {real:5.2f} ({_shown(sides['real'])})  "
                f"simulated {simulated:5.2f} ({_shown(sides['simulated'])}) {simulated / real - 1:+6.1%}  "
                f"at equal speed {equal:5.2f}"
            )
    for policy in policies:
        entries = [entry["policies"][policy] for entry in rounds]
        errors = [
            f"{name} {statistics.median(_deviations(entries, name)):+.0%}"
            for name in (f"{metric} {statistic}" for metric, statistic in FIGURES)
        ]
        shares = [
            f"{statistics.median(entry['cached_share'][side] for entry in entries):.0%}"
            for side in ("real", "simulated")
        ]
        preempted = [
            f"{statistics.median(entry['preemptions'][side] for entry in entries):.0f}"
            for side in ("real", "simulated")
        ]
        lines.append(
            f"{workload:<6} {policy:<6} simulated over real: {', '.join(errors)}; cached "
            f"{' -> '.join(shares)}; preemptions {' -> '.join(preempted)}"
        )
    return lines


def _deviations(entries: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [entry["figures"]["simulated"][name] / entry["figures"]["real"][name] - 1 for entry in entries]


def _shown(ratios: Sequence[float]) -> str:
    return " ".join(f"{ratio:.2f}" for ratio in ratios)


def spread_lines(workload: str, args: argparse.Namespace) -> list[str]:
    """Simulate a measured workload with other arrivals; return the spread of the ratios."""
    rounds = json.loads((args.replay / f"{workload}.json").read_text())
    part = part_of(workload, args)
    programs = part.loads[0].programs
    first, *others = args.policies
    entry = rounds[0]["policies"]
    fitted = Fitted(model=EngineModel(**entry[first]["model"]), overhead_s=entry[first]["overhead_s"])
    last_s = rounds[0]["arrivals_s"][-1]
    found: dict[str, dict[str, list[float]]] = {policy: {} for policy in others}
    for seed in range(args.seeds):
        drawn = poisson_arrivals(len(programs), len(programs) / last_s, 1000 + seed)
        figures = {
            policy: _figures(
                summarise(
                    programs,
                    drawn,
                    play_simulated(drawn, programs, fitted, SchedulerConfig(**entry[policy]["scheduler"])),
                )
            )
            for policy in args.policies
        }
        for policy in others:
            for name, value in figures[policy].items():
                found[policy].setdefault(name, []).append(value / figures[first][name])
    lines = []
    for policy, by_name in found.items():
        for name, ratios in by_name.items():
            tenths = statistics.quantiles(ratios, n=10)
            lines.append(
                f"{workload:<6} {policy:<6} {name:<26} {args.seeds} draws: median {tenths[4]:.2f}, "
                f"four of five from {tenths[0]:.2f} to {tenths[8]:.2f}, "
                f"all from {min(ratios):.2f} to {max(ratios):.2f}"
            )
    return lines


def refitted(workload: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Fit and simulate the runs of a finished measurement again."""
    rounds = []
    for entry in json.loads((args.refit / f"{workload}.json").read_text()):
        played = entry["policies"]
        runs = {policy: [CallResult(**call) for call in played[policy]["calls"]] for policy in args.policies}
        bounds = next((found for each in played.values() if (found := each["scheduler"].get("bounds"))), ())
        rounds.append(compared(part_of(workload, args), entry["arrivals_s"], runs, bounds, args))
    return rounds


def _silent(_title: str, _calls: int) -> Any:
    return lambda _result: None


def split_names(known: Sequence[str]) -> Any:
    """Return a parser of comma-separated names."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return parse


def main() -> int:
    """Run the benchmark from the command line; 1 if a ratio in steps deviates by more than 15 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workloads", type=split_names(WORKLOADS), default=WORKLOADS)
    parser.add_argument("--policies", type=split_names(LIVE_POLICY_NAMES), default=("fcfs", "boost", "plas"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--rho", type=float, default=1.5, help="offered load of chat and mixed")
    parser.add_argument("--kv-rho", type=float, default=1.0, help="of tools, over what fits at once")
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calibration-tokens", type=int, default=6000)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--out", type=Path, default=Path("simulated-against-real"))
    parser.add_argument("--replay", type=Path, help="a finished measurement, to draw other arrivals for")
    parser.add_argument("--refit", type=Path, help="a finished measurement, to fit and simulate again")
    parser.add_argument("--seeds", type=int, default=30, help="draws of --replay")
    args = parser.parse_args()
    lines: list[str] = []
    if args.replay is not None:
        for workload in args.workloads:
            lines += spread_lines(workload, args)
        print("\n".join(lines))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    for workload in args.workloads:
        rounds = measure(workload, args) if args.refit is None else refitted(workload, args)
        (args.out / f"{workload}.json").write_text(json.dumps(rounds) + "\n", encoding="utf-8")
        lines += ratio_lines(workload, rounds, args.policies)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
