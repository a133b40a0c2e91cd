"""Compare policies on vLLM's real scheduler under a model of its step times, and the simulator beside it.

    python benchmarks/stepped_policies.py [--workloads chat mixed coding tools] [--policies fcfs boost plas]
                                          [--draws 5] [--programs 40] [--json]

vLLM's scheduler and KV cache manager run with our class in this machine's memory, as in an engine; a script
writes the tokens, and a step takes its time in the engine model. So the scheduling is real, no noise of the
machine is in the figures, and these are in seconds of the model. The workloads are those of the demo:
`coding` and `tools` have scarce KV memory. Gateway, network and tokenizer are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.core.policies import make_policy
from autellix_backend.settings.scheduler import scheduler_to_mapping
from autellix_lab.bench.metrics import RunSummary, summarise
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.parts import BLOCK_TOKENS, SCARCE, DemoOptions, Part, demo_parts
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.trace import ProgramTrace, program_to_mapping

WORKLOADS = ("chat", "mixed", *SCARCE)
WORKER = Path(__file__).parents[1] / "tests" / "vllm_plugin" / "scripted_engine.py"
ENGINE = EngineModel(
    max_num_seqs=8,
    token_budget=2048,
    step_s=0.004,
    decode_s=0.0004,
    prefill_s=0.00006,
    block_tokens=BLOCK_TOKENS,
    source="about the demo's engine on two CPU cores",
)
BOUNDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
FIGURES = (("token_latency_s", "mean"), ("latency_s", "mean"), ("latency_s", "p95"), ("latency_s", "p99"))
LARGEST_DEVIATION = 0.15

Log = Sequence[Sequence[Any]]


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
        )
        os.close(write_end)
        self._replies: IO[str] = os.fdopen(read_end)

    def play(
        self,
        arrivals_s: Sequence[float],
        programs: Sequence[ProgramTrace],
        model: EngineModel,
        config: SchedulerConfig,
    ) -> Log:
        """Play programs; return the log of decisions."""
        scenario = {
            "arrivals": [
                (at, program_to_mapping(program)) for at, program in zip(arrivals_s, programs, strict=True)
            ],
            "model": asdict(model),
            "scheduler": scheduler_to_mapping(config),
            "has_hints": False,
            "is_async": False,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(scenario).encode() + b"\n")
        self._process.stdin.flush()
        report = json.loads(self._replies.readline())
        if "error" in report or report["is_degraded"]:
            raise RuntimeError(report.get("error", "the scheduler class failed"))
        return list(report["log"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


def simulated(
    arrivals_s: Sequence[float],
    programs: Sequence[ProgramTrace],
    model: EngineModel,
    config: SchedulerConfig,
) -> Log:
    """Play programs on the simulated engine; return the log of decisions."""
    log: list[Sequence[Any]] = []
    settings = SimSettings(model=model, scheduler=config)
    simulate(zip(arrivals_s, programs, strict=True), settings, log=lambda _, decision: log.append(decision))
    return log


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
    ample, short = demo_parts(options)
    return short if workload in SCARCE else ample


def scheduler_of(policy: str) -> SchedulerConfig:
    """Return a policy's settings; `boost` comes with admission by working set, as it is served."""
    if make_policy(policy).has_levels:
        return SchedulerConfig(policy=policy, admission="auto", beta=16.0, bounds=BOUNDS)
    return SchedulerConfig(policy=policy, admission="auto")


def summary_of(log: Log, arrivals_s: Sequence[float], programs: Sequence[ProgramTrace]) -> RunSummary:
    """Reduce a log of decisions to the statistics of its programs."""
    times: dict[str, dict[str, float]] = {}
    for event, call_id, at in log:
        times.setdefault(call_id, {})[event] = at
    results = []
    for call_id, at in times.items():
        number, call_number = map(int, call_id.split("."))
        call = programs[number].calls[call_number]
        results.append(
            CallResult(
                program=programs[number].program_id,
                call=call.id,
                thread=call.thread,
                submit_s=at["arrive"],
                finish_s=at["finish"],
                prompt_tokens=call.prefill_tokens,
                output_tokens=max(1, call.decode_tokens),
            )
        )
    return summarise(programs, arrivals_s, results)


def capacity_per_s(programs: Sequence[ProgramTrace], model: EngineModel) -> float:
    """Return the programs per second that a full batch serves, by simulation."""
    log = simulated([0.0] * len(programs), programs, model, SchedulerConfig(policy="fcfs"))
    ends: dict[str, float] = {}
    for event, call_id, at in log:
        if event == "finish":
            ends[call_id.split(".")[0]] = at
    kept = sorted(ends.values())[: -model.max_num_seqs]
    return len(kept) / kept[-1]


def compare(
    workload: str, args: argparse.Namespace, scheduler: SteppedScheduler
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the ratios to the first policy, stepped and simulated, by policy and figure, one per draw."""
    part = part_of(workload, args)
    programs = part.loads[0].programs
    fields = asdict(ENGINE) | {"kv_blocks": None if part.kv_blocks is None else part.kv_blocks - 1}
    model = EngineModel(**fields)
    first, *others = args.policies
    # Where memory is scarce, load is measured against an engine that does not recompute.
    rate_per_s = part.loads[0].rho * capacity_per_s(programs, ENGINE)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {policy: {} for policy in others}
    for draw in range(args.draws):
        arrivals_s = poisson_arrivals(len(programs), rate_per_s, args.seed + draw)
        sides: dict[str, list[RunSummary]] = {}
        for policy in args.policies:
            print(f"{workload}, draw {draw + 1}, {policy}", file=sys.stderr, flush=True)
            config = scheduler_of(policy)
            logs = [play(arrivals_s, programs, model, config) for play in (scheduler.play, simulated)]
            sides[policy] = [summary_of(log, arrivals_s, programs) for log in logs]
        for policy in others:
            for metric, statistic in FIGURES:
                stepped, predicted = (
                    side.metrics[metric][statistic] / base.metrics[metric][statistic]
                    for side, base in zip(sides[policy], sides[first], strict=True)
                )
                found[policy].setdefault(f"{metric} {statistic}", []).append((stepped, predicted))
    return found


def lines_of(workload: str, found: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> list[str]:
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


def main() -> int:
    """Run the benchmark from the command line; 1 if a mean ratio deviates by more than 15 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    add("--policies", nargs="+", choices=LIVE_POLICY_NAMES, default=("fcfs", "boost", "plas", "atlas"))
    add("--draws", type=int, default=5)
    add("--programs", type=int, default=40)
    add("--rho", type=float, default=1.5, help="offered load of chat and mixed")
    add("--kv-rho", type=float, help="of coding and tools, over ample memory (default: the demo's)")
    add("--seed", type=int, default=0)
    add("--json", action="store_true")
    args = parser.parse_args()
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
