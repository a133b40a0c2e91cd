"""Measure the simulator's speed, and whether its memory grows with calls or with live programs.

    python benchmarks/simulator_speed.py [--calls 5000 20000 80000] [--policies fcfs plas atlas] [--json]

Generated mixed programs arrive at one rate below saturation on one engine, so that about as many are alive
in a long run as in a short one. Programs are made as they arrive. Every run is a process of its own; its
memory is the process's peak above its start. CPU time is that of the
one core that a run uses.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
PROGRAMS_PER_BATCH = 30


def arrivals(calls: int, rate_per_s: float, seed: int) -> Iterator[tuple[float, ProgramTrace]]:
    """Make programs as they arrive, until they have so many calls together."""
    rng = random.Random(seed)
    now_s = 0.0
    made = batch = 0
    while made < calls:
        for program in generate_programs("mixed", PROGRAMS_PER_BATCH, seed + batch):
            now_s += rng.expovariate(rate_per_s)
            yield now_s, program
            made += len(program.calls)
            if made >= calls:
                return
        batch += 1


def measure(policy: str, calls: int, rate_per_s: float, seed: int) -> dict[str, Any]:
    """Simulate in this process; return its seconds, its memory and the most live programs."""
    settings = SimSettings(model=PRESET, scheduler=SchedulerConfig(policy=policy))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s = time.process_time()
    result = simulate(arrivals(calls, rate_per_s, seed), settings)
    return {
        "policy": policy,
        "calls": sum(program.calls for program in result.programs),
        "programs": len(result.programs),
        "steps": sum(engine.steps for engine in result.engines),
        "utilisation": sum(engine.busy_s for engine in result.engines) / result.makespan_s,
        "peak_programs": result.peak_programs,
        "processor_s": time.process_time() - started_s,
        "memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024,
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[5_000, 20_000, 80_000])
    parser.add_argument("--policies", nargs="+", default=["fcfs", "plas", "atlas"])
    parser.add_argument("--rate", type=float, default=0.1, help="programs per second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = []
    context = multiprocessing.get_context("spawn")
    for policy in options.policies:
        for calls in options.calls:
            with context.Pool(1) as pool:
                rows.append(pool.apply(measure, (policy, calls, options.rate, options.seed)))
            if not options.json:
                show(rows[-1])
    if options.json:
        print(json.dumps(rows))


def show(row: dict[str, Any]) -> None:
    """Print one run."""
    calls = f"{row['policy']:<6} {row['calls']:>7} calls of {row['programs']:>6} programs"
    alive = f"at most {row['peak_programs']:>4} alive, engine busy {row['utilisation']:.0%}"
    speed = f"{row['processor_s']:6.1f} s, {row['calls'] / row['processor_s']:6.0f} calls/s"
    print(f"{calls}, {alive}: {speed}, {row['memory_mib']:5.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
