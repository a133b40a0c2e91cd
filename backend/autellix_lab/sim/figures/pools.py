"""The programs of each workload: generated, or real traces from a folder."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from autellix_lab.sim.figures.study import WORKLOADS
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import read_traces

Pools = dict[str, list[ProgramTrace]]

POOL_SIZES = {"chat": 1500, "react": 600, "tree": 160, "mixed": 300}
TRACE_FILES = {
    "chat": ("sharegpt_en.jsonl.gz", "sharegpt_zh.jsonl.gz"),
    "react": ("bfcl_gt.jsonl.gz",),
    "tree": ("tot_game24.jsonl.gz", "lats_hotpot_model.jsonl.gz"),
}
"""Files of program traces in a folder, by workload; `mixed` is made from all of them."""

MAX_CONTEXT_TOKENS = 40_000
"""Longest prompt with answer of a real program: it has to fit into the engines with the fewest blocks."""


def generated_pools(seed: int, share: float = 1.0) -> Pools:
    """Generate the programs of all workloads; `share` is the part of the usual number."""
    return {
        workload: generate_programs(workload, max(20, round(POOL_SIZES[workload] * share)), seed)
        for workload in WORKLOADS
    }


def read_pools(folder: Path, seed: int, share: float = 1.0) -> Pools:
    """Read the traces of all workloads and draw the usual number of each.

    Nothing is waited for between calls. A history longer than MAX_CONTEXT_TOKENS starts over.

    Args:
        folder: holds TRACE_FILES.
        seed: of the draw.
        share: the part of the usual number that is drawn.

    Raises:
        TraceError: a file is missing or cannot be used.
    """
    rng = random.Random(f"pools:{seed}")
    pools: Pools = {}
    for workload, names in TRACE_FILES.items():
        programs = [program for name in names for program in read_traces(folder / name)]
        drawn = rng.sample(programs, min(len(programs), max(20, round(POOL_SIZES[workload] * share))))
        pools[workload] = [
            fit_program(program, length_scale=1.0, max_context_tokens=MAX_CONTEXT_TOKENS) for program in drawn
        ]
    third = max(7, round(POOL_SIZES["mixed"] * share) // len(TRACE_FILES))
    kinds = [_draw(rng, pools[workload], third) for workload in TRACE_FILES]
    pools["mixed"] = [program for programs in zip(*kinds, strict=True) for program in programs]
    return pools


def _draw(rng: random.Random, programs: Sequence[ProgramTrace], count: int) -> list[ProgramTrace]:
    shuffled = rng.sample(list(programs), len(programs))
    return list(itertools.islice(itertools.cycle(shuffled), count))
