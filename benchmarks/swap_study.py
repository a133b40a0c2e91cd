"""Simulate what becomes of preempted calls' KV blocks: moved to the host, read again, or nobody preempted.

    swap_study.py DATA

DATA/public has the traces. The engine has 64 slots and an eighth of its KV blocks, so that blocks run out
before slots do. Two measures: the load at which a case has the mean token latency that `plas, recompute` has
at load 1, interpolated linearly on each seed's curve; and the tokens per second of a batch of programs that
are all there from the start. Ratios are taken seed by seed, with Student's 95 % interval. Writes JSON and a
page of tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from policy_study import fit_note, load_programs

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.sim.experiment import Sweep, SweepResult, run_sweep, summarise_runs
from autellix_backend.sim.model import EngineModel
from autellix_backend.sim.presets import LLAMA_31_8B, MEMCPY_LAUNCH_S, PRESETS
from autellix_backend.sim.simulation import SimSettings
from autellix_backend.sim.table import load_at
from autellix_backend.workload.statistics import Interval, confidence_interval

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 64
KV_SHARE = 0.125
COPIES_PER_BLOCK = 2 * LLAMA_31_8B.layers
"""vLLM 0.6.1, the paper's baseline, copies keys and values of each layer of a block apart."""
BASELINE = "plas, recompute"
LOADS = (0.5, 0.75, 1.0, 1.25)
BASE_LOAD = 1.0
COUNTS = {"chat": 150, "tools": 100, "tree": 10, "coding": 30}
LATENCY = "token_latency_s.mean"
THROUGHPUT = "tokens_per_s"
METRICS = (
    LATENCY,
    "latency_s.mean",
    THROUGHPUT,
    "makespan_s",
    "preemptions_per_call",
    "swap_share",
    "cached_share",
)


def cases() -> dict[str, SimSettings]:
    """Return the ways to treat a running call that others should run before."""
    assert PRESET.kv_blocks is not None
    engine = replace(PRESET, max_num_seqs=SLOTS, kv_blocks=int(PRESET.kv_blocks * KV_SHARE))
    swap = replace(engine, preemption="swap")
    per_block = replace(swap, swap="per_block", swap_transfer_s=COPIES_PER_BLOCK * MEMCPY_LAUNCH_S)
    return {
        BASELINE: _settings(engine, "plas"),
        "plas, swap in bulk": _settings(swap, "plas"),
        "plas, swap by block": _settings(per_block, "plas"),
        "plas, swap at no cost": _settings(replace(swap, swap_block_s=0.0, swap_transfer_s=0.0), "plas"),
        "plas, no preemption": _settings(replace(engine, preemption="none"), "plas"),
        "fcfs, recompute": _settings(engine, "fcfs"),
    }


def _settings(model: EngineModel, policy: str) -> SimSettings:
    return SimSettings(model=model, scheduler=SchedulerConfig(policy=policy))


def show(interval: Interval | None, digits: int = 2) -> str:
    """Write a mean with its interval."""
    return "-" if interval is None else f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"


def equal_latency(result: SweepResult, case: str) -> Interval | str:
    """Return the load over the baseline's at the baseline's latency, or where it lies if not in the range."""
    targets = result.values(BASELINE, BASE_LOAD, LATENCY)
    by_load = [result.values(case, load, LATENCY) for load in LOADS]
    found = [
        load_at([*zip(LOADS, values, strict=True)], target)
        for target, values in zip(targets, zip(*by_load, strict=True), strict=True)
    ]
    outside = [load for load in found if not min(LOADS) <= load <= max(LOADS)]
    if outside:
        side = "above" if outside[0] > 0 else "below"
        return f"{side} the range in {len(outside)} of {len(found)}"
    return confidence_interval([load / BASE_LOAD for load in found])


def table(open_loop: SweepResult, at_once: SweepResult, names: Sequence[str]) -> list[str]:
    """Return one workload's table."""
    titles = (
        "case",
        "throughput at equal latency",
        "mean token latency at load 1",
        "throughput of a batch",
        "preemptions per call",
        "swapping",
        "cached",
    )
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name in names:
        equal = equal_latency(open_loop, name)
        cells = (
            name,
            equal if isinstance(equal, str) else show(equal),
            show(open_loop.ratio(name, BASELINE, BASE_LOAD, LATENCY)),
            show(at_once.ratio(name, BASELINE, 1.0, THROUGHPUT), 3),
            f"{open_loop.interval(name, BASE_LOAD, 'preemptions_per_call').mean:.2f}",
            f"{open_loop.interval(name, BASE_LOAD, 'swap_share').mean:.1%}",
            f"{open_loop.interval(name, BASE_LOAD, 'cached_share').mean:.0%}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run the study from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(COUNTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the programs of a run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("study-results"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    lines: list[str] = []
    for workload in arguments.workloads:
        started = time.perf_counter()
        count = max(4, round(COUNTS[workload] * arguments.scale))
        sweep = Sweep(
            programs=load_programs(arguments.data, workload),
            count=count,
            cases=cases(),
            loads=LOADS,
            seeds=range(arguments.seeds),
        )
        open_loop = run_sweep(sweep, workers=arguments.workers)
        batch = replace(sweep, loads=(1.0,), arrivals="at_once")
        at_once = run_sweep(batch, workers=arguments.workers)
        rows[workload] = {
            "count": count,
            "fit": fit_note(workload),
            "open_loop": summarise_runs(open_loop, METRICS),
            "at_once": summarise_runs(at_once, METRICS),
        }
        lines += [f"## {workload}", "", f"{count} programs per run, {fit_note(workload)}.", ""]
        lines += [*table(open_loop, at_once, list(sweep.cases)), ""]
        (arguments.out / "swap.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (arguments.out / "swap-tables.md").write_text("\n".join(lines), encoding="utf-8")
        print(f"{workload}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
