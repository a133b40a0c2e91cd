"""Simulate what becomes of preempted calls' KV blocks: moved to the host, read again, or nobody preempted.

    swap_study.py DATA

DATA/public has the traces. The engine has 64 slots and an eighth of its KV blocks, so that blocks run out
before slots do. Two measures: the mean token latency beyond saturation, and the tokens per second of a batch
of programs that are all there from the start. Ratios are taken seed by seed, with Student's 95 %
interval. Writes JSON and a page of tables.
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
from autellix_backend.workload.statistics import Interval

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 64
KV_SHARE = 0.125
COPIES_PER_BLOCK = 2 * LLAMA_31_8B.layers
"""vLLM 0.6.1, the paper's baseline, copies keys and values of each layer of a block apart."""
BASELINE = "plas, recompute"
LOAD = 1.5
COUNTS = {"chat": 220, "tools": 60, "tree": 8, "coding": 24}
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


def show(interval: Interval, digits: int = 2) -> str:
    """Write a mean with its interval."""
    return f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"


def table(open_loop: SweepResult, at_once: SweepResult, names: Sequence[str]) -> list[str]:
    """Return one workload's table."""
    titles = (
        "case",
        f"mean token latency at load {LOAD:g}",
        "throughput of a batch",
        "preemptions per call",
        "swapping",
        "cached",
    )
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name in names:
        cells = (
            name,
            show(open_loop.ratio(name, BASELINE, LOAD, LATENCY)),
            show(at_once.ratio(name, BASELINE, 1.0, THROUGHPUT), 3),
            f"{open_loop.interval(name, LOAD, 'preemptions_per_call').mean:.2f}",
            f"{open_loop.interval(name, LOAD, 'swap_share').mean:.1%}",
            f"{open_loop.interval(name, LOAD, 'cached_share').mean:.0%}",
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
            loads=(LOAD,),
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
