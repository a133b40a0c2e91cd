"""Measure on the CPU engine what steps, moved KV blocks and resumed calls cost.

    python benchmarks/swap_costs.py [--out swap-costs.json] [--rounds 2] [--seconds 20]

vLLM runs inside this process with the generated demo model and our scheduler class, and is stepped from
here: no server, no gateway. Rounds alternate between an engine without host memory and one that keeps KV
blocks there. Both play the closed-loop mixes of `autellix sim calibrate` (answers alone and in a full batch,
long prompts, short calls, both), from which the times of a step are fitted; what storing blocks beside the
steps costs is in the times of the second. Then calls of 64 to 2,048 tokens are preempted, one at a time and
with nothing beside them, and resume by a load or by a recompute, in turn; there is no prefix
cache. The wall time is taken from the moment when the call may resume to its next token. The cost of a
block's transfer is fitted to the engine's own counters: seconds of the copies over jobs and blocks.

Writes JSON for `study.py swap --costs`. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepped_engine import BLOCK_TOKENS, SLOTS, TOKEN_BUDGET, Moved, Resumed, SteppedEngine, engine_of

from autellix_backend.core.preemption import ResumeKind
from autellix_backend.engines.vllm_command import environment_defaults
from autellix_backend.kernels.swap import open_swapper
from autellix_lab.bench.mixes import usual_mixes
from autellix_lab.demo.model import build_demo_model, demo_model_directory
from autellix_lab.sim.calibrate import MeasuredCall, fit_model

CONTEXTS = (64, 128, 256, 512, 1024, 2048)
REPEATS = 5
MIXES = usual_mixes(SLOTS)
MIXES[-1] = replace(MIXES[-1], prompt_tokens=512, answer_tokens=64)


def play_mixes(engine: SteppedEngine, round_number: int, seconds: float) -> list[MeasuredCall]:
    """Play every mix for its share of the time, once all are warm."""
    for mix in MIXES:
        engine.play(mix, 0.1 * seconds / len(MIXES))
    found: list[MeasuredCall] = []
    for mix in MIXES:
        # Steps are counted by mix: those of two rounds must not overlap.
        named = replace(mix, name=f"{mix.name} {round_number}")
        found += engine.play(named, 0.9 * seconds / len(MIXES))
    return found


def fit_moves(moves: Sequence[Moved]) -> tuple[float, float]:
    """Return the seconds of a job and of a block that fit best, neither below zero."""
    jobs2 = sum(jobs * jobs for jobs, _, _ in moves)
    blocks2 = sum(blocks * blocks for _, blocks, _ in moves)
    both = sum(jobs * blocks for jobs, blocks, _ in moves)
    jobs_s = sum(jobs * seconds for jobs, _, seconds in moves)
    blocks_s = sum(blocks * seconds for _, blocks, seconds in moves)
    spread = jobs2 * blocks2 - both * both
    job_s = (jobs_s * blocks2 - blocks_s * both) / spread
    block_s = (blocks_s * jobs2 - jobs_s * both) / spread
    if job_s < 0:
        return 0.0, blocks_s / blocks2
    return (job_s, block_s) if block_s >= 0 else (jobs_s / jobs2, 0.0)


def difference(after: Moved, before: Moved) -> Moved:
    """Return the transfers between two readings of the counters."""
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


@dataclass(slots=True)
class Found:
    """The measurements of all rounds."""

    calls: dict[bool, list[MeasuredCall]] = field(default_factory=lambda: {False: [], True: []})
    """Of the mixes, by whether blocks were stored beside them."""
    moves: dict[str, list[Moved]] = field(default_factory=lambda: {"store": [], "load": []})
    """By direction, for each call that was resumed."""
    resumed: list[Resumed] = field(default_factory=list)
    block_bytes: int = 0
    dtype: str = ""


def measure(model: Path, arguments: argparse.Namespace) -> Found:
    """Alternate between the engines."""
    found = Found()
    for number, host_gib in itertools.product(range(arguments.rounds), (None, arguments.host_gib)):
        with engine_of(model, host_gib) as engine:
            found.block_bytes, found.dtype = engine.block_bytes, engine.dtype
            found.calls[engine.has_host_memory] += play_mixes(engine, number, arguments.seconds)
            if engine.has_host_memory:
                found.resumed += resume_all(engine, found.moves)
    return found


def summarise(found: Found) -> dict[str, Any]:
    """Return fits and medians as plain JSON values."""
    lines = {direction: fit_moves(moves) for direction, moves in found.moves.items()}
    job_s, block_s = (statistics.fmean(line[place] for line in lines.values()) for place in (0, 1))
    summary: dict[str, Any] = {"block_bytes": found.block_bytes, "dtype": found.dtype}
    for is_storing, title in ((False, "engine"), (True, "engine_storing")):
        fit = fit_model(found.calls[is_storing])
        engine = fit.engine_model(
            "demo-measured",
            SLOTS,
            token_budget=TOKEN_BUDGET,
            block_tokens=BLOCK_TOKENS,
            swap_block_s=block_s,
            swap_transfer_s=job_s,
        )
        summary[title] = engine.to_mapping()
        summary[f"{title}_errors"] = dict(fit.errors)
    summary["swaps"] = {
        direction: {
            **dict(zip(("jobs", "blocks", "seconds"), map(sum, zip(*moves, strict=True)), strict=True)),
            "job_s": lines[direction][0],
            "block_s": lines[direction][1],
        }
        for direction, moves in found.moves.items()
    }
    return {**summary, "resumed": resume_rows(found.resumed)}


def resume_all(engine: SteppedEngine, moves: dict[str, list[Moved]]) -> list[Resumed]:
    """Resume calls of every length in both ways, in turn; record the transfers of each."""
    found = []
    for repeat, tokens, kind in itertools.product(range(REPEATS + 1), CONTEXTS, ResumeKind):
        before = {direction: engine.moved(direction) for direction in moves}
        one = engine.resume(tokens, kind)
        if not repeat:
            continue  # The first of each warms caches.
        found.append(one)
        for direction, samples in moves.items():
            moved = difference(engine.moved(direction), before[direction])
            if moved[1]:
                samples.append(moved)
    return found


def resume_rows(resumed: Sequence[Resumed]) -> list[dict[str, float]]:
    """Return medians and extremes by length of the context."""
    rows = []
    for tokens in CONTEXTS:
        row: dict[str, float] = {"tokens": tokens}
        for kind in ResumeKind:
            found = [one for one in resumed if (one.tokens, one.kind) == (tokens, kind)]
            seconds = [one.seconds for one in found]
            row |= {
                f"{kind}_s": statistics.median(seconds),
                f"{kind}_least_s": min(seconds),
                f"{kind}_most_s": max(seconds),
                f"{kind}_steps": statistics.median(one.steps for one in found),
            }
        rows.append(row)
    return rows


def main() -> None:
    """Run the measurement from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("swap-costs.json"))
    parser.add_argument("--rounds", type=int, default=2, help="of each engine")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the mixes, in each round")
    parser.add_argument("--host-gib", type=float, default=1.0)
    parser.add_argument("--model", type=Path, help="folder of the demo model, made if it is not there")
    arguments = parser.parse_args()
    random.seed(0)
    model = build_demo_model(arguments.model or demo_model_directory())
    os.environ.update(
        environment_defaults(str(model), is_cpu=True),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="WARNING",
    )
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("VLLM_CACHE_ROOT", cache)
        summary = summarise(measure(model, arguments))
    with contextlib.closing(open_swapper()) as swapper:
        summary["swapper"] = swapper.backend
    arguments.out.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
