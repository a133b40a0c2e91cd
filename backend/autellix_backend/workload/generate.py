"""Seeded generators of agent programs whose statistics follow the paper's workloads table (section 6.1).

chat   one thread of turns, long answers                       ShareGPT
react  one thread of tool steps, long prompts, short answers   BFCL v3 multi-turn
tree   rounds of five parallel branches                        LATS (Monte Carlo tree search on HotpotQA)
mixed  the three in equal shares

Counts and lengths are log-normal, so their tails are heavy, and capped; the median is solved for so that the
capped mean is the table's. Lengths are at the paper's scale: `fit_program` brings them to a small engine's.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from autellix_backend.workload.schema import CallTrace, ProgramTrace

TREE_WIDTH = 5
"""Branches per round, LATS's number of samples per expansion."""


@dataclass(frozen=True, slots=True)
class HeavyTail:
    """A log-normal number of at least one: its mean after capping, its largest value, its spread."""

    mean: float
    maximum: int
    sigma: float

    def draw(self, rng: random.Random) -> int:
        """Return one number from 1 to the maximum."""
        value = rng.lognormvariate(_mu(self.mean, self.maximum, self.sigma), self.sigma)
        return max(1, min(self.maximum, round(value)))


@dataclass(frozen=True, slots=True)
class Shape:
    """The statistics of one workload."""

    calls: HeavyTail
    prefill_tokens: HeavyTail
    """New prompt tokens of one call."""
    decode_tokens: HeavyTail


# Means and maxima of the calls, and means of the lengths, are the paper's; maxima of the lengths and the
# spreads are ours, near those of ShareGPT, BFCL and LATS runs (see docs/demo.md).
SHAPES: dict[str, Shape] = {
    "chat": Shape(HeavyTail(6.66, 80, 0.9), HeavyTail(256, 2048, 1.0), HeavyTail(277, 2048, 0.8)),
    "react": Shape(HeavyTail(10.75, 70, 0.5), HeavyTail(735.06, 4096, 0.6), HeavyTail(34.14, 512, 0.7)),
    "tree": Shape(HeavyTail(159.7, 400, 0.9), HeavyTail(467.2, 2048, 0.4), HeavyTail(72.6, 512, 0.5)),
}
WORKLOADS = (*SHAPES, "mixed")


def generate_programs(workload: str, count: int, seed: int, *, tree_scale: float = 1.0) -> list[ProgramTrace]:
    """Make `count` programs; the same arguments make the same programs.

    `tree_scale` multiplies the number of a tree's calls, mean and maximum, for engines that are too slow for
    the paper's 160 calls a tree.

    Raises:
        ValueError: for an unknown workload; the message lists the known ones.
    """
    if workload not in WORKLOADS:
        raise ValueError(f"workload is {workload!r}; expected one of {', '.join(WORKLOADS)}")
    kinds = itertools.cycle(SHAPES) if workload == "mixed" else itertools.repeat(workload)
    shapes = {**SHAPES, "tree": _scale_calls(SHAPES["tree"], tree_scale)}
    return [
        _generate(kind, shapes[kind], index, seed) for index, kind in zip(range(count), kinds, strict=False)
    ]


def _generate(kind: str, shape: Shape, index: int, seed: int) -> ProgramTrace:
    # One generator per program: a longer list has the same first programs.
    rng = random.Random(f"{kind}:{seed}:{index}")
    builder = _Builder(rng, shape)
    _BUILDERS[kind](builder, shape.calls.draw(rng))
    program_id = f"{kind}_{seed}_{index}"
    return ProgramTrace(
        source=f"generated_{kind}",
        program_id=program_id,
        group=program_id,
        calls=tuple(builder.calls),
        modelled=True,
    )


def _scale_calls(shape: Shape, scale: float) -> Shape:
    calls = shape.calls
    scaled = HeavyTail(calls.mean * scale, max(1, round(calls.maximum * scale)), calls.sigma)
    return replace(shape, calls=scaled)


class _Builder:
    """Collects the calls of one program; each draws its lengths from the shape."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        self.rng = rng
        self.shape = shape
        self.calls: list[CallTrace] = []

    def add(self, thread: str, kind: str, parents: tuple[int, ...], prefix_from: int | None) -> int:
        shared_tokens = 0 if prefix_from is None else self.calls[prefix_from].context_tokens
        call = CallTrace(
            id=len(self.calls),
            parents=parents,
            thread=thread,
            prefill_tokens=shared_tokens + self.shape.prefill_tokens.draw(self.rng),
            decode_tokens=self.shape.decode_tokens.draw(self.rng),
            shared_prefix_tokens=shared_tokens,
            prefix_from=prefix_from,
            kind=kind,
        )
        self.calls.append(call)
        return call.id


def _build_thread(builder: _Builder, call_count: int, kind: str) -> None:
    for index in range(call_count):
        last = index - 1 if index else None
        builder.add("main", kind if index else "root", () if last is None else (last,), last)


def _build_tree(builder: _Builder, call_count: int) -> None:
    """Expand a node into parallel branches, value each, choose any node so far, and go on from it."""
    values: list[int] = []
    parents: tuple[int, ...] = ()
    for round_number in itertools.count():
        chosen = builder.rng.choice(values) if values else None
        ends: list[int] = []
        for branch in range(TREE_WIDTH):
            room = call_count - len(builder.calls)
            if room <= 0:
                break
            ends.append(
                _build_branch(builder, f"r{round_number}.{branch}", parents, chosen, is_valued=room > 1)
            )
        if not ends:
            return
        values.extend(ends)
        parents = tuple(ends)


def _build_branch(
    builder: _Builder, thread: str, parents: tuple[int, ...], chosen: int | None, *, is_valued: bool
) -> int:
    generated = builder.add(thread, "generate" if parents else "root", parents, chosen)
    return builder.add(thread, "value", (generated,), generated) if is_valued else generated


_BUILDERS: dict[str, Callable[[_Builder, int], None]] = {
    "chat": lambda builder, count: _build_thread(builder, count, "human"),
    "react": lambda builder, count: _build_thread(builder, count, "tool"),
    "tree": _build_tree,
}


@cache
def _mu(mean: float, maximum: int, sigma: float) -> float:
    """Solve for the log-normal's location whose mean, with values above the maximum cut to it, is `mean`."""
    low, high = math.log(mean) - sigma**2, math.log(maximum)
    for _ in range(60):
        middle = (low + high) / 2
        if _capped_mean(middle, sigma, maximum) < mean:
            low = middle
        else:
            high = middle
    return low


def _capped_mean(mu: float, sigma: float, maximum: int) -> float:
    normal = NormalDist()
    cut = (math.log(maximum) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * normal.cdf(cut - sigma) + maximum * (1 - normal.cdf(cut))
