"""Compare the runs of peers_live.py with the simulator: vLLM, ThunderAgent's router and our default.

    python benchmarks/peers_simulated.py [--out peers-live]

Each round of OUT/runs.jsonl on one engine is simulated with its arrivals, and with slightly slower and faster
ones, because figures of single runs scatter; means of these. The step times, and the time from an answer to
the next call at the engine, are fitted to such runs, first of all of vLLM alone. An engine's speed changes
from round to round, so ratios to vLLM are compared. Medians over the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, quantiles

from peers import THUNDER_INTERVAL_S
from peers_live import DIRECT, KV_BLOCKS, OURS, Run, read_runs

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.demo.parts import BLOCK_TOKENS, DemoOptions, demo_parts
from autellix_lab.sim.baselines import thunder_agent
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.trace import ProgramTrace

ENGINE = EngineModel(
    max_num_seqs=DemoOptions().max_num_seqs,
    token_budget=2048,
    step_s=0.0028,
    decode_s=8e-5,
    context_s=4e-7,
    prefill_s=1.28e-5,
    prefill_context_s=2.2e-8,
    call_s=0.006,
    block_tokens=BLOCK_TOKENS,
    kv_blocks=KV_BLOCKS - 1,
    source="the demo's engine on two CPU cores",
)
ROUND_TRIP_S = 0.03
"""From an answer to the next call at the engine, beside the program's own gap: HTTP, proxy and client."""
FCFS = SchedulerConfig(policy="fcfs", admission="none")
SYSTEMS = {
    DIRECT: SimSettings(model=ENGINE, scheduler=FCFS),
    "ThunderAgent": SimSettings(model=ENGINE, scheduler=FCFS, baseline="thunderagent"),
    OURS: SimSettings(model=ENGINE, scheduler=SchedulerConfig(policy="boost")),
}
RATES = (0.94, 0.97, 1.0, 1.03, 1.06)
"""Times the rate of a round."""
FIGURES = ("mean s", "p50 s", "p95 s", "makespan s", "cached")
Figures = Mapping[str, float]


def figures_of(result: SimResult) -> Figures:
    """Return a simulation's figures."""
    latencies_s = [program.latency_s for program in result.programs]
    cached = sum(program.cached_tokens for program in result.programs)
    p95_s = quantiles(latencies_s, n=100, method="inclusive")[94]
    share = cached / sum(program.prompt_tokens for program in result.programs)
    values = (mean(latencies_s), median(latencies_s), p95_s, result.makespan_s, share)
    return dict(zip(FIGURES, values, strict=True))


def simulated(programs: Sequence[ProgramTrace], rate_per_s: float) -> dict[str, Figures]:
    """Return the figures of each system with about the arrivals of a round."""
    delayed = list(map(with_round_trips, programs))
    draws = [poisson_arrivals(len(programs), factor * rate_per_s, 0) for factor in RATES]
    return {
        name: mean_of([figures_of(simulate(zip(draw, delayed, strict=True), settings)) for draw in draws])
        for name, settings in SYSTEMS.items()
    }


def mean_of(runs: Sequence[Figures]) -> Figures:
    """Return the means of figures."""
    return {kind: mean(run[kind] for run in runs) for kind in FIGURES}


def with_round_trips(program: ProgramTrace) -> ProgramTrace:
    """Return a program whose calls reach the engine later after their parents' answers."""
    calls = (
        replace(call, gap_before_s=call.gap_before_s + ROUND_TRIP_S * bool(call.parents))
        for call in program.calls
    )
    return replace(program, calls=tuple(calls))


def rounds_of(runs: Sequence[Run], workload: str) -> list[dict[str, Run]]:
    """Return the rounds on one engine that have all systems."""
    rounds: dict[int, dict[str, Run]] = {}
    for run in runs:
        if run["engines"] == 1 and run["workload"] == workload:
            rounds.setdefault(run["round"], {})[run["system"]] = run
    return [found for found in rounds.values() if found.keys() >= SYSTEMS.keys()]


def row(name: str, rounds: Sequence[Mapping[str, Figures]]) -> list[str]:
    """Return a system's medians: seconds over those of vLLM, and its cached share."""
    cells = [
        f"{median(figures[name][kind] / figures[DIRECT][kind] for figures in rounds):.2f}"
        for kind in FIGURES
        if kind != "cached"
    ]
    return [*cells, f"{median(figures[name]['cached'] for figures in rounds):.2f}"]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("peers-live"))
    args = parser.parse_args()
    # A constant of the simulated router.
    thunder_agent.INTERVAL_S = THUNDER_INTERVAL_S
    runs = read_runs(args.out / "runs.jsonl")
    print("| | mean: real | simulated | p50 | | p95 | | makespan | | cached | |\n|---" + "|---" * 10 + "|")
    for workload in ("tools", "coding"):
        options = DemoOptions(kv_workload=workload, kv_blocks=KV_BLOCKS)
        programs = demo_parts(options)[0].load.programs
        real = rounds_of(runs, workload)
        model = [simulated(programs, found[DIRECT]["rate"]) for found in real]
        for name in SYSTEMS if real else ():
            pairs = zip(row(name, real), row(name, model), strict=True)
            print(f"| {workload}, {name} | " + " | ".join(" | ".join(pair) for pair in pairs) + " |")


if __name__ == "__main__":
    main()
