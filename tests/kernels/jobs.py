"""Random memories and jobs, and what a job must leave behind."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.job import Direction, Job, Plane, Strategy, SwapStats, pairs_of

GUARD_BYTES = 64
"""Bytes around the planes that no job may touch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A side's planes by their offsets, before there is memory for them."""

    offsets: tuple[int, ...]
    block_bytes: tuple[int, ...]
    strides: tuple[int, ...]
    blocks: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two sides, a table, and how to copy."""

    sources: Geometry
    destinations: Geometry
    pairs: tuple[tuple[int, int], ...]
    direction: Direction
    strategy: Strategy


_KEPT: deque[Memory] = deque(maxlen=16)


@dataclass(slots=True)
class Memory:
    """Both sides' bytes, and the job between them."""

    case: Case
    source: ctypes.Array[ctypes.c_char] = field(init=False)
    destination: ctypes.Array[ctypes.c_char] = field(init=False)

    def __post_init__(self) -> None:
        size = self.case.sources.total_bytes
        # No two words alike, so that a copy from the wrong place shows.
        self.source = ctypes.create_string_buffer(random.Random(size).randbytes(size), size)
        self.destination = ctypes.create_string_buffer(b"\xee" * self.case.destinations.total_bytes)

    def job(self, **changes: Any) -> Job:
        """Return the job, with the named fields changed."""
        # A job is nothing but addresses: what is behind them must outlive whoever made it in passing.
        _KEPT.append(self)
        job = Job(
            sources=_planes(self.case.sources, ctypes.addressof(self.source)),
            destinations=_planes(self.case.destinations, ctypes.addressof(self.destination)),
            pairs=pairs_of(self.case.pairs),
            direction=self.case.direction,
            strategy=self.case.strategy,
        )
        return replace(job, **changes)

    def expected(self) -> bytes:
        """Return what the destination must hold afterwards."""
        source, result = self.source.raw, bytearray(self.destination.raw)
        sources, destinations = self.case.sources, self.case.destinations
        for i, size in enumerate(sources.block_bytes):
            for from_block, to_block in self.case.pairs:
                begin = sources.offsets[i] + from_block * sources.strides[i]
                at = destinations.offsets[i] + to_block * destinations.strides[i]
                result[at : at + size] = source[begin : begin + size]
        return bytes(result)


def copy(swapper: Swapper, job: Job) -> SwapStats:
    """Run a job and wait for it."""
    return swapper.wait(swapper.submit(job))


def copy_and_compare(swapper: Swapper, case: Case) -> SwapStats:
    """Copy, and compare every byte of both sides with what a plain model says."""
    memory = Memory(case)
    before, expected = memory.source.raw, memory.expected()
    stats = copy(swapper, memory.job())
    assert memory.destination.raw == expected
    assert memory.source.raw == before
    return stats


def _planes(geometry: Geometry, base: int) -> tuple[Plane, ...]:
    return tuple(
        Plane(base + offset, size, stride, geometry.blocks)
        for offset, size, stride in zip(geometry.offsets, geometry.block_bytes, geometry.strides, strict=True)
    )


def geometry(
    block_bytes: Sequence[int], blocks: int, *, is_together: bool, padding: int, order: Sequence[int]
) -> Geometry:
    """Lay planes out: a block's layers together (BLHNC) or each layer apart (LBHNC), with gaps between."""
    offsets = [0] * len(block_bytes)
    at = GUARD_BYTES
    if is_together:
        stride = sum(block_bytes) + padding
        strides = [stride] * len(block_bytes)
        for i in order:
            offsets[i] = at
            at += block_bytes[i]
        total = GUARD_BYTES + stride * blocks
    else:
        strides = [size + padding for size in block_bytes]
        for i in order:
            offsets[i] = at
            at += strides[i] * blocks
        total = at
    return Geometry(
        offsets=tuple(offsets),
        block_bytes=tuple(block_bytes),
        strides=tuple(strides),
        blocks=blocks,
        total_bytes=total + GUARD_BYTES,
    )


def scattered(*, is_far_together: bool, strategy: Strategy, direction: Direction) -> Case:
    """Return a case of four layers: every second block of near memory, adjacent blocks of far memory."""
    near = geometry([64] * 4, 32, is_together=False, padding=0, order=range(4))
    far = geometry([64] * 4, 32, is_together=is_far_together, padding=0, order=range(4))
    is_load = direction is Direction.LOAD
    blocks = [(2 * k, k) for k in range(16)]
    return Case(
        sources=far if is_load else near,
        destinations=near if is_load else far,
        pairs=tuple((b, a) for a, b in blocks) if is_load else tuple(blocks),
        direction=direction,
        strategy=strategy,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case: layouts, sizes, tables with and without neighbours, both directions, every strategy."""
    words = draw(st.lists(st.integers(1, 96) | st.sampled_from([512, 700, 5000]), min_size=1, max_size=4))
    sizes = [8 * n for n in words]
    is_even = draw(st.booleans())
    if is_even:
        sizes = [sizes[0]] * len(sizes)

    def side() -> Geometry:
        return geometry(
            sizes,
            draw(st.integers(1, 12)),
            is_together=draw(st.booleans()),
            padding=draw(st.sampled_from([0, 0, 8, 40])),
            order=draw(st.permutations(range(len(sizes)))),
        )

    sources, destinations = side(), side()
    return Case(
        sources=sources,
        destinations=destinations,
        pairs=draw(tables(sources.blocks, destinations.blocks)),
        direction=draw(st.sampled_from(Direction)),
        strategy=draw(st.sampled_from(Strategy)),
    )


@st.composite
def tables(draw: st.DrawFn, sources: int, destinations: int) -> tuple[tuple[int, int], ...]:
    """Draw pairs of blocks: one run of neighbours, or any blocks in any order."""
    if draw(st.booleans()):
        count = draw(st.integers(0, min(sources, destinations)))
        first, to = draw(st.integers(0, sources - count)), draw(st.integers(0, destinations - count))
        return tuple((first + k, to + k) for k in range(count))
    chosen = draw(st.lists(st.integers(0, destinations - 1), unique=True, max_size=destinations))
    return tuple((draw(st.integers(0, sources - 1)), block) for block in chosen)
