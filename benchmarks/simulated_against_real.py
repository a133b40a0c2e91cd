"""Play programs on a real engine under several policies, simulate the same, and compare the figures.

For each policy in turn a backend of its own is started, its engine's step times are fitted as `autellix sim
calibrate` does it, and the programs are played on it; then the simulator plays the same programs at the same
arrival times with the fitted model. Both sides are reduced by the same functions. What the client and the
gateway add to a call is measured in the calibration and played by the simulator as a gap before each call.

    python benchmarks/simulated_against_real.py [--programs 100] [--policies fcfs,plas,atlas,hinted] [--json]

Needs an idle machine. `--url` plays all policies on one running backend, whatever it is: it shows that
everything works and proves nothing. `--programs` and `--policies` make it shorter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import LIVE_POLICY_NAMES
from autellix_backend.gateway.recording.trace import ProgramTrace
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.bench.calibrate import choose_bounds
from autellix_lab.bench.compare import Target, calibrate
from autellix_lab.bench.metrics import RunSummary, summarise
from autellix_lab.bench.mixes import measure_mixes, usual_mixes
from autellix_lab.bench.replay import ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.sim import simulation
from autellix_lab.sim.calibrate import ModelFit, fit_model
from autellix_lab.sim.engine import Decision, SimEngine
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs

MAX_CONTEXT_TOKENS = 2048
BLOCK_TOKENS = 32
TOKEN_BUDGET = 2048
RUN_TIMEOUT_S = 1800.0
LARGEST_ERROR = 0.15
FIGURES = (
    ("latency_s", "mean"),
    ("latency_s", "p95"),
    ("token_latency_s", "mean"),
    ("latency_steps", "mean"),
    ("latency_steps", "p95"),
    ("token_latency_steps", "mean"),
)
RANKED = tuple(metric for metric, statistic in FIGURES if statistic == "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One backend's calibration."""

    fit: ModelFit
    overhead_s: float
    """A call's time outside the engine."""

    def model(self, slots: int) -> EngineModel:
        """Return the engine model; the demo model's KV blocks never run out."""
        return self.fit.engine_model("fitted", slots, token_budget=TOKEN_BUDGET, block_tokens=BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One policy on both sides."""

    policy: str
    fitted: Fitted
    real: RunSummary
    simulated: RunSummary
    cached_tokens: tuple[int, int]
    """Prompt tokens that the prefix cache had, real and simulated."""

    def error(self, metric: str, statistic: str) -> float:
        """Return simulated over real, minus one."""
        return self.simulated.metrics[metric][statistic] / self.real.metrics[metric][statistic] - 1


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
        self.ends.append((now, self.batch.steps))
        return super().begin(now)

    def end(self, now: float) -> Any:
        """Record where a stretch ended."""
        done = super().end(now)
        self.ends.append((now, self.batch.steps))
        self.cached |= {call.call_id: call.cached_tokens for call in done}
        return done


def play_simulated(
    arrivals_s: Sequence[float],
    programs: Sequence[ProgramTrace],
    model: EngineModel,
    scheduler: SchedulerConfig,
    overhead_s: float,
) -> list[CallResult]:
    """Simulate, and return the calls as a client of a real backend would have seen them."""
    log: list[Decision] = []
    delayed = [_delayed(program, overhead_s) for program in programs]
    settings = simulation.SimSettings(model=model, scheduler=scheduler)
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
            _result(call_id, programs, times, stops[call_id], overhead_s, engine.ends),
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
    calls = [replace(call, gap_before_s=(call.gap_before_s or 0.0) + overhead_s) for call in program.calls]
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


def fit_backend(target: Target, slots: int, seconds: float, salt: str) -> Fitted:
    """Fit an engine model to a backend, and measure what calls take beside their time in the engine."""
    seen: list[CallResult] = []

    def play(title: str, programs: Sequence[ProgramTrace]) -> list[CallResult]:
        results = _replay(target, programs, [0.0] * len(programs), f"{salt}:{title}")
        if not title.startswith("warm-up"):
            seen.extend(results)
        return results

    mixes = usual_mixes(slots, prompt_tokens=1024, answer_tokens=128, short_prompt_tokens=64)
    # The last mix has the demo's lengths.
    mixes[-1] = replace(mixes[-1], prompt_tokens=256, answer_tokens=64)
    fit = fit_model(measure_mixes(mixes, play, seconds, lambda text: print(f"  {text}", file=sys.stderr)))
    overheads = [
        result.response_s - service_s - (result.receipt_number("wait_s") or 0.0)
        for result in seen
        if (service_s := result.receipt_number("service_s")) is not None
    ]
    return Fitted(fit=fit, overhead_s=max(0.0, statistics.median(overheads)))


def _replay(
    target: Target, programs: Sequence[ProgramTrace], arrivals_s: Sequence[float], salt: str
) -> list[CallResult]:
    job = ReplayJob(
        base_url=target.base_url,
        model=target.model,
        programs=programs,
        arrivals_s=arrivals_s,
        salt=salt,
        timeout_s=RUN_TIMEOUT_S,
    )
    return replay(job)


@contextlib.contextmanager
def backend(args: argparse.Namespace, policy: str, bounds: Sequence[float] | None) -> Iterator[Target]:
    """Run a backend under a policy."""
    if args.url is not None:
        yield Target(base_url=args.url, model=args.model)
        return
    scheduler: dict[str, Any] = {"policy": policy, "beta": args.beta}
    if bounds is not None:
        scheduler["bounds"] = list(bounds)
    extra_args = ["--max-model-len", str(2 * MAX_CONTEXT_TOKENS), "--block-size", str(BLOCK_TOKENS)]
    extra_args += ["--max-num-batched-tokens", str(TOKEN_BUDGET)]
    settings = {
        "gateway": {"port": 0, "report_wait_s": 5.0},
        "engine": {"max_num_seqs": args.max_num_seqs, "extra_args": extra_args},
        "scheduler": scheduler,
    }
    with BackendProcess(policy, args.model, settings, args.out) as process:
        process.launch()
        process.wait_ready()
        yield Target(base_url=process.base_url, model=process.model())


def compare(
    args: argparse.Namespace, programs: Sequence[ProgramTrace]
) -> tuple[list[Compared], dict[str, Any]]:
    """Play and simulate every policy; return both sides and the setting."""
    found: list[Compared] = []
    slots = args.max_num_seqs
    with backend(args, args.policies[0], None) as target:
        speed = calibrate(target, programs, slots, args.calibration_tokens, _silent, salt="first")
    bounds = choose_bounds(speed, programs)
    rate_per_s = speed.rate_for(args.rho, programs)
    arrivals_s = poisson_arrivals(len(programs), rate_per_s, args.seed)
    for policy in args.policies:
        print(f"{policy}: {len(programs)} programs at {rate_per_s:.3g}/s", file=sys.stderr)
        with backend(args, policy, bounds) as target:
            fitted = fit_backend(target, slots, args.seconds, f"{args.seed}:{policy}")
            results = _replay(target, programs, arrivals_s, f"{args.seed}:{policy}:programs")
        scheduler = SchedulerConfig(policy=policy, bounds=bounds, beta=args.beta)
        calls = play_simulated(arrivals_s, programs, fitted.model(slots), scheduler, fitted.overhead_s)
        both = Compared(
            policy=policy,
            fitted=fitted,
            real=summarise(programs, arrivals_s, results),
            simulated=summarise(programs, arrivals_s, calls),
            cached_tokens=(_cached_tokens(results), _cached_tokens(calls)),
        )
        if both.real.lost_calls:
            raise RuntimeError(f"{policy}: {both.real.lost_calls} calls were lost: {both.real.errors}")
        found.append(both)
    return found, {
        "programs": len(programs),
        "calls": sum(len(program.calls) for program in programs),
        "output_tokens": sum(program.decode_tokens for program in programs),
        "rho": args.rho,
        "programs_per_s": rate_per_s,
        "capacity_tokens_per_s": speed.tokens_per_s,
        "bounds_s": list(bounds),
        "beta": args.beta,
        "max_num_seqs": slots,
        "seed": args.seed,
    }


def ranking(found: Sequence[Compared], side: str, metric: str) -> list[str]:
    """Return the policies from the least to the largest mean of a metric."""
    ordered = sorted(found, key=lambda both: getattr(both, side).metrics[metric]["mean"])
    return [both.policy for both in ordered]


def report(found: Sequence[Compared], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as plain JSON values."""
    policies = {}
    for both in found:
        fit = both.fitted.fit
        policies[both.policy] = {
            "model": {
                "step_s": fit.step_s,
                "decode_s": fit.decode_s,
                "context_s": fit.context_s,
                "prefill_s": fit.prefill_s,
                "call_s": fit.call_s,
            },
            "fit_errors": dict(fit.errors),
            "overhead_s": both.fitted.overhead_s,
            "figures": {
                f"{metric}.{statistic}": {
                    "real": both.real.metrics[metric][statistic],
                    "simulated": both.simulated.metrics[metric][statistic],
                    "error": both.error(metric, statistic),
                }
                for metric, statistic in FIGURES
            },
            "preemptions": [both.real.totals["preemptions"], both.simulated.totals["preemptions"]],
            "prompt_tokens": [both.real.totals["prompt_tokens"], both.simulated.totals["prompt_tokens"]],
            "cached_tokens": list(both.cached_tokens),
            "duration_s": [both.real.duration_s, both.simulated.duration_s],
        }
    ranks = {
        metric: {side: ranking(found, side, metric) for side in ("real", "simulated")} for metric in RANKED
    }
    return {"setting": dict(setting), "policies": policies, "ranks": ranks}


def print_report(mapping: Mapping[str, Any]) -> None:
    """Print one line per policy and figure, and the rank orders."""
    print(json.dumps(mapping["setting"]))
    print(f"{'policy':>8} {'figure':<26} {'real':>10} {'simulated':>10} {'error':>8}")
    for policy, entry in mapping["policies"].items():
        for name, figure in entry["figures"].items():
            print(
                f"{policy:>8} {name:<26} {figure['real']:>10.4g} {figure['simulated']:>10.4g} "
                f"{figure['error']:>+8.1%}"
            )
        for name in ("preemptions", "prompt_tokens", "cached_tokens", "duration_s"):
            real, simulated = entry[name]
            print(f"{policy:>8} {name:<26} {real:>10.6g} {simulated:>10.6g}")
    for metric, ranks in mapping["ranks"].items():
        verdict = "equal" if ranks["real"] == ranks["simulated"] else "different"
        print(f"{metric}: ranks {verdict}: real {ranks['real']}, simulated {ranks['simulated']}")


def make_programs(args: argparse.Namespace) -> list[ProgramTrace]:
    """Make the demo's kind of programs."""
    return [
        fit_program(program, length_scale=args.length_scale, max_context_tokens=MAX_CONTEXT_TOKENS)
        for program in generate_programs("mixed", args.programs, args.seed, tree_scale=args.tree_scale)
    ]


def _cached_tokens(results: Sequence[CallResult]) -> int:
    return sum(result.cached_tokens or 0 for result in results)


def _silent(_title: str, _calls: int) -> Any:
    return lambda _result: None


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in LIVE_POLICY_NAMES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(LIVE_POLICY_NAMES)}")
    return names


def main() -> int:
    """Run the comparison; 0 if the rank orders are equal and every mean is within 15 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--policies", type=_policies, default=("fcfs", "plas", "atlas", "hinted"))
    parser.add_argument("--rho", type=float, default=1.5)
    parser.add_argument("--length-scale", type=float, default=0.25)
    parser.add_argument("--tree-scale", type=float, default=0.25)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--beta", type=float, default=16.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0, help="to fit each engine")
    parser.add_argument("--calibration-tokens", type=int, default=6000)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--url", help="play every policy on this running backend, to try the script")
    parser.add_argument("--out", type=Path, default=Path("simulated-against-real"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    mapping = report(*compare(args, make_programs(args)))
    (args.out / "comparison.json").write_text(json.dumps(mapping, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(mapping))
    else:
        print_report(mapping)
    is_ranked = all(ranks["real"] == ranks["simulated"] for ranks in mapping["ranks"].values())
    errors = [
        abs(figure["error"])
        for entry in mapping["policies"].values()
        for name, figure in entry["figures"].items()
        if name.endswith(".mean")
    ]
    return int(not is_ranked or max(errors) > LARGEST_ERROR)


if __name__ == "__main__":
    raise SystemExit(main())
