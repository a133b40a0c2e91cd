"""Compare policies on vLLM's real scheduler under a model of its step times, and the simulator beside it.

    python benchmarks/stepped_policies.py [--workloads chat mixed coding tools] [--policies fcfs boost plas]
                                          [--draws 5] [--programs 40] [--json]
    python benchmarks/stepped_policies.py --workloads recorded --data DATA --policies fcfs boost --draws 3
                                          --programs 12 [--rate 0.01] [--host-gb 0]

vLLM's scheduler and KV cache manager run with our class in this machine's memory, as in an engine; a script
writes the tokens, and a step takes its time in the engine model. So the scheduling is real, no noise of the
machine is in the figures, and these are in seconds of the model. The workloads are those of the demo:
`coding` and `tools` have scarce KV memory. `recorded` has coding sessions at full length, of the folder DATA,
on an engine preset, whose blocks are as long as vLLM allows, for speed. Gateway, network and tokenizer are
left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.core.policies import make_policy
from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_lab.bench.metrics import summarise
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.parts import BLOCK_TOKENS, SCARCE, DemoOptions, Part, demo_parts
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import load_programs
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import Fit, GapRule
from autellix_lab.workload.trace import ProgramTrace, program_to_mapping

GENERATED = ("chat", "mixed", *SCARCE)
RECORDED = "recorded"
FULL_LENGTH = Fit(max_context_tokens=131_072, gap_rule=GapRule(60.0))
LONG_BLOCK_TOKENS = 128
WORKER = Path(__file__).parents[1] / "tests" / "vllm_plugin" / "scripted_engine.py"
ENGINE = EngineModel(
    max_num_seqs=8,
    token_budget=2048,
    step_s=0.004,
    decode_s=0.0004,
    prefill_s=0.00006,
    block_tokens=BLOCK_TOKENS,
    source="prefill is dear: 67 tokens take as long as a step without any, on the demo's engine some 450",
)
BOUNDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
FIGURES = (("token_latency_s", "mean"), ("latency_s", "mean"), ("latency_s", "p95"), ("latency_s", "p99"))
MAKESPAN, CACHED = "makespan", "cached share"
LARGEST_DEVIATION = 0.15

Pairs = list[tuple[float, float]]
"""A figure of the real scheduler and of the simulator, one pair for each draw."""


@dataclass(frozen=True, slots=True)
class Played:
    """What happened: a log of decisions, and the prompt tokens that calls found in the cache."""

    log: Sequence[Sequence[Any]]
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Draw:
    """Programs, when they arrive, and the engine that serves them."""

    programs: Sequence[ProgramTrace]
    arrivals_s: Sequence[float]
    model: EngineModel

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(call.prefill_tokens for program in self.programs for call in program.calls)


class SteppedScheduler:
    """vLLM's scheduler in a process of its own."""

    def __init__(self, directory: Path) -> None:
        read_end, write_end = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(write_end), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(write_end,),
            # For what the tests share.
            env={**os.environ, "PYTHONPATH": str(WORKER.parents[2])},
        )
        os.close(write_end)
        self._replies: IO[str] = os.fdopen(read_end)

    def play(self, draw: Draw, config: SchedulerConfig) -> Played:
        """Play a draw's programs."""
        report = self.report(draw, config)
        return Played(report["log"], report["cached_tokens"])

    def report(self, draw: Draw, config: SchedulerConfig, *, long_prefill_tokens: int = 0) -> dict[str, Any]:
        """Play a draw's programs; return all that the engine reports of it."""
        scenario = {
            "arrivals": [
                (at, program_to_mapping(program))
                for at, program in zip(draw.arrivals_s, draw.programs, strict=True)
            ],
            "model": asdict(draw.model),
            "scheduler": scheduler_to_mapping(config),
            "has_hints": False,
            "is_async": False,
            "long_prefill_tokens": long_prefill_tokens,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(scenario).encode() + b"\n")
        self._process.stdin.flush()
        report: dict[str, Any] = json.loads(self._replies.readline())
        if "error" in report or report["is_degraded"]:
            raise RuntimeError(report.get("error", "the scheduler class failed"))
        return report

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


def simulated(draw: Draw, config: SchedulerConfig) -> Played:
    """Play a draw's programs on the simulated engine."""
    log: list[Sequence[Any]] = []
    result = simulate(
        zip(draw.arrivals_s, draw.programs, strict=True),
        SimSettings(model=draw.model, scheduler=config),
        log=lambda _, decision: log.append(decision),
    )
    return Played(log, sum(record.cached_tokens for record in result.programs))


def part_of(workload: str, args: argparse.Namespace) -> Part:
    """Return a workload as a part of the demo."""
    options = DemoOptions(
        workload="mixed" if workload in SCARCE else workload,
        programs=args.programs,
        kv_workload=workload if workload in SCARCE else "coding",
        kv_programs=args.programs,
        rho=args.rho,
        kv_rho=args.kv_rho,
        seed=args.seed,
    )
    memory, slots = demo_parts(options)
    return memory if workload in SCARCE else slots


def generated_draws(workload: str, args: argparse.Namespace) -> Iterator[Draw]:
    """Yield the same programs of the demo with other arrivals."""
    part = part_of(workload, args)
    programs = part.load.programs
    model = replace(ENGINE, kv_blocks=None if part.kv_blocks is None else part.kv_blocks - 1)
    # Where memory is scarce, load is measured against an engine that does not recompute.
    rate_per_s = part.load.rho * capacity_per_s(programs, ENGINE)
    for draw in range(args.draws):
        yield Draw(programs, poisson_arrivals(len(programs), rate_per_s, args.seed + draw), model)


def recorded_draws(args: argparse.Namespace) -> Iterator[Draw]:
    """Yield recorded coding sessions with their arrivals."""
    pool = load_programs(args.data, "coding", {"coding": FULL_LENGTH})
    model = with_block_tokens(PRESETS[args.model], LONG_BLOCK_TOKENS)
    if args.host_gb:
        model = model.with_host(args.host_gb)
    for seed in range(args.seed, args.seed + args.draws):
        programs = random.Random(seed).sample(pool, args.programs)
        yield Draw(programs, poisson_arrivals(args.programs, args.rate, seed), model)


def with_block_tokens(model: EngineModel, block_tokens: int, blocks: int | None = None) -> EngineModel:
    """Return an engine with the same KV memory in larger blocks, or with so many of them."""
    factor = block_tokens // model.block_tokens
    if blocks is None and model.kv_blocks is not None:
        blocks = model.kv_blocks // factor
    return replace(
        model,
        block_tokens=block_tokens,
        block_bytes=factor * model.block_bytes,
        swap_block_s=factor * model.swap_block_s,
        kv_blocks=blocks,
    )


def scheduler_of(policy: str, workload: str) -> SchedulerConfig:
    """Return a policy's settings; `boost` comes with admission by working set, as it is served."""
    if workload != RECORDED and make_policy(policy).has_levels:
        return SchedulerConfig(policy=policy, admission="auto", beta=16.0, bounds=BOUNDS)
    return SchedulerConfig(policy=policy, admission="auto")


def figures_of(played: Played, draw: Draw) -> dict[str, float]:
    """Reduce what happened to the figures that are compared."""
    times: dict[str, dict[str, float]] = {}
    for event, call_id, at in played.log:
        times.setdefault(call_id, {})[event] = at
    results = []
    for call_id, at in times.items():
        number, call_number = map(int, call_id.split("."))
        call = draw.programs[number].calls[call_number]
        results.append(
            CallResult(
                program=draw.programs[number].program_id,
                call=call.id,
                thread=call.thread,
                submit_s=at["arrive"],
                finish_s=at["finish"],
                prompt_tokens=call.prefill_tokens,
                output_tokens=max(1, call.decode_tokens),
            )
        )
    summary = summarise(draw.programs, draw.arrivals_s, results)
    figures = {f"{metric} {name}": summary.metrics[metric][name] for metric, name in FIGURES}
    return figures | {MAKESPAN: summary.duration_s, CACHED: played.cached_tokens / draw.prompt_tokens}


def capacity_per_s(programs: Sequence[ProgramTrace], model: EngineModel) -> float:
    """Return the programs per second that a full batch serves, by simulation."""
    log = simulated(Draw(programs, [0.0] * len(programs), model), SchedulerConfig(policy="fcfs")).log
    ends: dict[str, float] = {}
    for event, call_id, at in log:
        if event == "finish":
            ends[call_id.split(".")[0]] = at
    kept = sorted(ends.values())[: -model.max_num_seqs]
    return len(kept) / kept[-1]


def compare(
    workload: str, args: argparse.Namespace, scheduler: SteppedScheduler
) -> dict[str, dict[str, Pairs]]:
    """Return the ratios to the first policy, and the cached shares, by policy and figure."""
    first = args.policies[0]
    found: dict[str, dict[str, Pairs]] = {policy: {} for policy in args.policies}
    draws = recorded_draws(args) if workload == RECORDED else generated_draws(workload, args)
    for number, draw in enumerate(draws, 1):
        base: list[dict[str, float]] = []
        for policy in args.policies:
            print(f"{workload}, draw {number}, {policy}", file=sys.stderr, flush=True)
            config = scheduler_of(policy, workload)
            sides = [figures_of(play(draw, config), draw) for play in (scheduler.play, simulated)]
            base = base or sides
            for name in sides[0]:
                divisors = [1.0, 1.0] if name == CACHED else [side[name] for side in base]
                if policy != first or name == CACHED:
                    stepped, predicted = (
                        side[name] / divisor for side, divisor in zip(sides, divisors, strict=True)
                    )
                    found[policy].setdefault(name, []).append((stepped, predicted))
            print(sides, file=sys.stderr, flush=True)
    return found


def lines_of(workload: str, found: Mapping[str, Mapping[str, Pairs]]) -> list[str]:
    """Return one line per policy and figure."""
    lines = []
    for policy, figures in found.items():
        for name, pairs in figures.items():
            stepped, predicted = (statistics.mean(pair[side] for pair in pairs) for side in (0, 1))
            drawn = " ".join(f"{pair[0]:.2f}" for pair in pairs)
            worst = max((pair[1] / pair[0] - 1 for pair in pairs), key=abs)
            lines.append(
                f"{workload:<6} {policy:<6} {name:<21} stepped {stepped:5.2f} ({drawn})  simulated "
                f"{predicted:5.2f} {predicted / stepped - 1:+6.1%}, worst draw {worst:+6.1%}"
            )
    return lines


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Declare what is offered, and the engine that recorded sessions are for."""
    add = parser.add_argument
    add("--rho", type=float, default=1.5, help="offered load of chat and mixed")
    add("--kv-rho", type=float, help="of coding and tools, over ample memory (default: the demo's)")
    add("--data", type=Path, help="folder whose public/ has the recorded sessions")
    add("--model", choices=tuple(PRESETS), default="llama3.1-70b-4xa100", help="engine of recorded")
    add("--rate", type=float, default=0.01, help="arrivals per second of recorded")
    add("--seed", type=int, default=0)


def main() -> int:
    """Run the benchmark from the command line; 1 if a mean ratio deviates by more than 15 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--workloads", nargs="+", choices=(*GENERATED, RECORDED), default=GENERATED)
    add("--policies", nargs="+", choices=LIVE_POLICY_NAMES, default=("fcfs", "boost", "plas", "atlas"))
    add("--draws", type=int, default=5)
    add("--programs", type=int, default=40)
    add_load_options(parser)
    add("--host-gb", type=float, default=0.0, help="its host memory, behind our connector")
    add("--json", action="store_true")
    args = parser.parse_args()
    if RECORDED in args.workloads and args.data is None:
        parser.error(f"{RECORDED} needs --data")
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        scheduler = SteppedScheduler(Path(directory))
        for workload in args.workloads:
            found[workload] = compare(workload, args, scheduler)
            if not args.json:
                print("\n".join(lines_of(workload, found[workload])), flush=True)
        scheduler.close()
    if args.json:
        print(json.dumps(found))
    pairs = [pairs for policies in found.values() for by in policies.values() for pairs in by.values()]
    means = [[statistics.mean(pair[side] for pair in item) for side in (0, 1)] for item in pairs]
    return int(any(abs(predicted / stepped - 1) > LARGEST_DEVIATION for stepped, predicted in means))


if __name__ == "__main__":
    raise SystemExit(main())
