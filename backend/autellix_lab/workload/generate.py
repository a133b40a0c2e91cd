"""Seeded generators of agent programs whose statistics follow the paper's workloads table (section 6.1).

chat        one thread of turns, long answers                       ShareGPT
react       one thread of tool steps, long prompts, short answers   BFCL v3 multi-turn
tree        rounds of five parallel samples and their values        LATS (Monte Carlo tree search on HotpotQA)
map_reduce  a plan, parallel maps, a reduce                         ours: the paper has no such row
tools       tool steps after a long list of tools, with gaps        ours: BFCL v3 multi-turn ground truths
coding      tool steps with long growing contexts, and gaps         ours: recorded sessions of Claude Code
mixed       chat, react and tree in equal shares

Counts and lengths are log-normal, so their tails are heavy, and capped; the median is solved for so that the
capped mean is the table's. Lengths are at the paper's scale: `fit_program` brings them to a small engine's.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from autellix_lab.workload.builders import BUILDERS, SIBLING_NEW_TOKENS, CallList, WorkloadShape
from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import ProgramTrace

# Means and maxima of the calls, and means of the lengths, are the paper's; maxima of the lengths and of a
# tree's calls, and all spreads, are ours, near those of ShareGPT, BFCL and LATS runs.
SHAPES: dict[str, WorkloadShape] = {
    "chat": WorkloadShape(HeavyTail(6.66, 80, 0.9), HeavyTail(256, 2048, 1.0), HeavyTail(277, 2048, 0.8)),
    "react": WorkloadShape(
        HeavyTail(10.75, 70, 0.65), HeavyTail(735.06, 4096, 0.6), HeavyTail(34.14, 512, 0.7)
    ),
    "tree": WorkloadShape(
        HeavyTail(159.7, 400, 0.9), HeavyTail(467.2, 2048, 0.4), HeavyTail(72.6, 512, 0.27)
    ),
    "map_reduce": WorkloadShape(
        HeavyTail(18, 130, 0.8), HeavyTail(1024, 8192, 0.8), HeavyTail(160, 1024, 0.6)
    ),
    "tools": WorkloadShape(HeavyTail(9.7, 24, 0.4), HeavyTail(160, 2000, 1.2), HeavyTail(27, 200, 0.6)),
    "coding": WorkloadShape(
        HeavyTail(69, 350, 1.18), HeavyTail(1600, 13_500, 1.06), HeavyTail(430, 3600, 0.88)
    ),
}
MIXED = ("chat", "react", "tree")
"""The paper's three, in equal shares."""
WORKLOADS = (*SHAPES, "mixed")

TREE_REPEATED_SHARE = 0.667
"""Share of a tree's calls that repeat a sibling's prompt; the others carry its mean of new tokens."""

TOOL_LISTS = 8
"""Lists of tools that the programs of `tools` share."""
TOOL_LIST_TOKENS = HeavyTail(4900, 6000, 0.25)
CODING_PREFIX_TOKENS = 14_400
"""Instructions and tools of the coding agent, which all its sessions share."""


def generate_programs(workload: str, count: int, seed: int, *, tree_scale: float = 1.0) -> list[ProgramTrace]:
    """Make `count` programs; the same arguments make the same programs.

    `tree_scale` multiplies the number of a tree's calls, mean and maximum, for engines that are too slow for
    the paper's 160 calls a tree.

    Raises:
        ValueError: for an unknown workload; the message lists the known ones.
    """
    if workload not in WORKLOADS:
        raise ValueError(f"workload is {workload!r}; expected one of {', '.join(WORKLOADS)}")
    kinds = itertools.cycle(MIXED) if workload == "mixed" else itertools.repeat(workload)
    shapes = {**SHAPES, "tree": _tree_shape(tree_scale)}
    return [
        _generate(kind, shapes[kind], index, seed) for index, kind in zip(range(count), kinds, strict=False)
    ]


def generate_shaped(kind: str, shape: WorkloadShape, count: int, seed: int) -> list[ProgramTrace]:
    """Make programs of one kind of `SHAPES` with other statistics than its own."""
    return [_generate(kind, shape, index, seed) for index in range(count)]


def _generate(kind: str, shape: WorkloadShape, index: int, seed: int) -> ProgramTrace:
    # One generator per program: a longer list has the same first programs.
    rng = random.Random(f"{kind}:{seed}:{index}")
    program = CallList(rng, shape)
    call_count = shape.calls.draw(rng)
    if kind == "tools":
        program.prefix_tokens = _tool_list_tokens(seed, rng.randrange(TOOL_LISTS))
    elif kind == "coding":
        program.prefix_tokens = CODING_PREFIX_TOKENS
    BUILDERS[kind](program, call_count)
    program_id = f"{kind}_{seed}_{index}"
    return ProgramTrace(
        source=f"generated_{kind}",
        program_id=program_id,
        group=program_id,
        calls=tuple(program.calls),
        system_prefix_tokens=program.prefix_tokens or None,
        modelled=True,
    )


def _tool_list_tokens(seed: int, number: int) -> int:
    """Return the length of a list of tools; programs with equal ones share it."""
    return TOOL_LIST_TOKENS.draw(random.Random(f"tools:{seed}:list {number}"))


def _tree_shape(scale: float) -> WorkloadShape:
    shape = SHAPES["tree"]
    mean = shape.prefill_tokens.mean
    own = (mean - TREE_REPEATED_SHARE * SIBLING_NEW_TOKENS) / (1 - TREE_REPEATED_SHARE)
    factor = own / mean
    return replace(shape, calls=shape.calls.scaled(scale), prefill_tokens=shape.prefill_tokens.scaled(factor))
