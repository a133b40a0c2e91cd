"""Simulates three ways to treat running calls: swap their KV blocks, recompute them, or never preempt.

    swap_study.py DATA                  stated costs, of an A100
    swap_study.py DATA --costs FILE     costs that swap_costs.py has measured on the CPU engine

DATA/public has the traces. KV blocks run out before slots do. Measures are the mean token latency beyond
saturation, and the tokens per second of a batch of programs that all arrive at the start. Ratios are taken
seed by seed, with Student's 95 % interval. Writes JSON and a page of tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import Sweep, SweepResult, run_sweep, summarise_runs
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import LLAMA_31_8B, MEMCPY_LAUNCH_S, PRESETS
from autellix_lab.sim.recorded import FITS, Chapter, fit_note, study_parser, study_workloads
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.table import format_interval
from autellix_lab.workload.fit import RECORDED_GAPS, Fit
from autellix_lab.workload.trace import ProgramTrace

PRESET = PRESETS["llama3.1-8b-a100"]
SLOTS = 64
KV_SHARE = 0.125
COPIES_PER_BLOCK = 2 * LLAMA_31_8B.layers
"""vLLM 0.6.1, the paper's baseline, copies keys and values of each layer of a block apart."""
COUNTS = {"chat": 220, "tools": 60, "tree": 8, "coding": 24}

MEASURED_KV_TOKENS = 3072
"""One and a half of the longest contexts below, for the measured engine's slots together."""
MEASURED_CONTEXT_TOKENS = 2048
MEASURED_SCALE = 0.25
"""Factor on lengths: contexts stay within those that were measured."""
MEASURED_COUNTS = {"chat": 100, "tools": 60, "tree": 8, "coding": 24}

BASELINE = "plas, recompute"
LOAD = 1.5
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Engines under memory pressure, and the programs that fit them."""

    name: str
    engine: EngineModel
    storing: EngineModel
    """The same with blocks stored beside the steps, which may lengthen them."""
    block_transfer_s: float
    """Time to start the copies of one block, where blocks move one by one."""
    counts: Mapping[str, int]
    fits: Mapping[str, Fit]


def stated_costs() -> Costs:
    """Return the A100's, with a share of its KV blocks."""
    assert PRESET.kv_blocks is not None
    engine = replace(PRESET, max_num_seqs=SLOTS, kv_blocks=int(PRESET.kv_blocks * KV_SHARE))
    return Costs(
        name="swap",
        engine=engine,
        storing=engine,
        block_transfer_s=COPIES_PER_BLOCK * MEMCPY_LAUNCH_S,
        counts=COUNTS,
        fits=FITS,
    )


def measured_costs(path: Path) -> Costs:
    """Return the costs that swap_costs.py wrote, for programs of the sizes that it measured."""
    found = json.loads(path.read_text(encoding="utf-8"))
    engine, storing = (EngineModel(**found[name]) for name in ("engine", "engine_storing"))
    kv_blocks = MEASURED_KV_TOKENS // engine.block_tokens
    return Costs(
        name="swap-measured",
        engine=replace(engine, kv_blocks=kv_blocks),
        storing=replace(storing, kv_blocks=kv_blocks),
        block_transfer_s=engine.swap_transfer_s,
        counts=MEASURED_COUNTS,
        fits={workload: _smaller(FITS.get(workload)) for workload in MEASURED_COUNTS},
    )


def _smaller(fit: Fit | None) -> Fit:
    return Fit(
        length_scale=MEASURED_SCALE * (fit.length_scale if fit else 1.0),
        max_context_tokens=MEASURED_CONTEXT_TOKENS,
        gap_rule=fit.gap_rule if fit else RECORDED_GAPS,
    )


def cases(costs: Costs) -> dict[str, SimSettings]:
    """Return the ways to treat a running call when a better one waits."""
    engine = costs.engine
    swap = replace(engine, resume="swap")
    per_block = replace(swap, swap="per_block", swap_transfer_s=costs.block_transfer_s)
    return {
        BASELINE: _settings(engine, "plas"),
        "plas, swap in bulk": _settings(swap, "plas"),
        "plas, swap by block": _settings(per_block, "plas"),
        "plas, swap at no cost": _settings(replace(swap, swap_block_s=0.0, swap_transfer_s=0.0), "plas"),
        "plas, by price": _settings(replace(costs.storing, resume="host"), "plas", "priced"),
        "plas, no preemption": _settings(engine, "plas", "never"),
        "fcfs, recompute": _settings(engine, "fcfs"),
    }


def _settings(model: EngineModel, policy: str, preemption: str = "always") -> SimSettings:
    return SimSettings(model=model, scheduler=SchedulerConfig(policy=policy, preemption=preemption))


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
    rows = [
        (
            name,
            format_interval(open_loop.ratio(name, BASELINE, LOAD, LATENCY)),
            format_interval(at_once.ratio(name, BASELINE, 1.0, THROUGHPUT), 3),
            f"{open_loop.interval(name, LOAD, 'preemptions_per_call').mean:.2f}",
            f"{open_loop.interval(name, LOAD, 'swap_share').mean:.1%}",
            f"{open_loop.interval(name, LOAD, 'cached_share').mean:.0%}",
        )
        for name in names
    ]
    return markdown_table(titles, rows)


def run(arguments: argparse.Namespace, costs: Costs) -> None:
    """Simulate every workload, and write the results as they come."""

    def chapter(workload: str, programs: Sequence[ProgramTrace], count: int) -> Chapter:
        sweep = Sweep(
            programs=programs,
            count=count,
            cases=cases(costs),
            loads=(LOAD,),
            seeds=range(arguments.seeds),
        )
        open_loop = run_sweep(sweep, workers=arguments.workers)
        batch = replace(sweep, loads=(1.0,), arrivals="at_once")
        at_once = run_sweep(batch, workers=arguments.workers)
        rows = {
            "open_loop": summarise_runs(open_loop, METRICS),
            "at_once": summarise_runs(at_once, METRICS),
        }
        note = f"{count} programs per run, {fit_note(workload, costs.fits)}."
        return Chapter(
            rows, [f"## {workload}", "", note, "", *table(open_loop, at_once, list(sweep.cases)), ""]
        )

    study_workloads(arguments, costs.name, costs.counts, chapter, fits=costs.fits)


def main() -> None:
    """Run the study from the command line."""
    parser = study_parser(__doc__, COUNTS)
    parser.add_argument("--costs", type=Path, metavar="FILE", help="what swap_costs.py has written")
    arguments = parser.parse_args()
    run(arguments, stated_costs() if arguments.costs is None else measured_costs(arguments.costs))


if __name__ == "__main__":
    main()
