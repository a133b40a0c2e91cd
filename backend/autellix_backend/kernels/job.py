"""Swap jobs: planes of blocks, jobs and their results.

A *plane* is a row of equally large blocks: one layer of a cache whose layers lie apart (LBHNC), or the whole
cache where all layers of a block are adjacent (BLHNC). A job copies, for every pair of its table, the source
block of every source plane to the destination block of the destination plane with the same number. One block
of one plane is a *page*; a *transfer* is one copy that crosses between the accelerator's memory (near) and
the host's (far).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from autellix_backend.kernels.errors import Code, SwapError

MAX_DEVICES = 1 << 16
MAX_THREADS = 64
MIN_SLOT_BYTES = 1 << 12
MAX_SLOT_BYTES = 1 << 30
MAX_SLOTS = 16
ALIGNMENT = 8
TABLE_SIZES = 10
TABLE_COUNTS = 4
TABLE_CELLS = 2 * TABLE_SIZES * TABLE_COUNTS * 2
WORD_END = 1 << 64
PAIR_BYTES = 16


class Strategy(IntEnum):
    """How pages become transfers."""

    PER_PAGE = 0
    """One transfer per page: the paper's baseline, and the measure of the others."""
    COALESCED = 1
    """Pages adjacent in both memories share a transfer."""
    STAGED = 2
    """Pages are gathered in near memory; adjacent pages in far memory share a transfer."""
    AUTO = 3
    """STAGED where it is faster by the job's table, else COALESCED."""


class Direction(IntEnum):
    """The direction of a job."""

    STORE = 0
    """Near to far: the paper's swap out."""
    LOAD = 1
    """Far to near: the paper's swap in."""


class Buffer(Protocol):
    """An object whose memory can be viewed: `array('q')`, a numpy array of int64."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Plane:
    """Equally large blocks at equal distances."""

    base: int
    """Address of block 0."""
    block_bytes: int
    stride_bytes: int
    """The distance from one block to the next."""
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapTable:
    """Measured seconds per piece, by direction, size, number of pieces and strategy."""

    backend: str
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.seconds) != TABLE_CELLS:
            raise SwapError(Code.STRUCT, "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One swap of blocks between planes."""

    sources: tuple[Plane, ...]
    destinations: tuple[Plane, ...]
    pairs: Buffer
    """Signed 64-bit numbers: source block, destination block, source block, …"""
    direction: Direction
    strategy: Strategy = Strategy.AUTO
    table: SwapTable | None = None
    after_stream: int | None = None
    """A `cudaStream_t` whose queued work must end first (0: CUDA's default stream), None for no wait."""
    is_source_stable: bool = False
    """Whether nothing queued but jobs writes the sources: CUDA may read them early. Never for a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStats:
    """The result of a job."""

    strategy: Strategy
    transfers: int
    pages: int
    bytes: int
    seconds: float
    """The time from the first copy to the end, beside what overlaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOptions:
    """The options of a swapper, the same for every job."""

    device: int = 0
    """The CUDA device."""
    threads: int = 1
    """CPU: the threads of one large job."""
    slot_bytes: int = 4 << 20
    """The size of a slot of the staging ring, a multiple of 4,096."""
    slots: int = 2
    """CUDA: the slots of a staging ring, of which each direction has two."""

    def __post_init__(self) -> None:
        """Check the options; raises a SwapError with the field."""
        if not 0 <= self.device < MAX_DEVICES:
            raise SwapError(Code.LIMIT, "device")
        if not 0 < self.threads <= MAX_THREADS:
            raise SwapError(Code.LIMIT, "threads")
        if not MIN_SLOT_BYTES <= self.slot_bytes <= MAX_SLOT_BYTES:
            raise SwapError(Code.LIMIT, "slot_bytes")
        if self.slot_bytes % MIN_SLOT_BYTES:
            raise SwapError(Code.ALIGN, "slot_bytes")
        if not 2 <= self.slots <= MAX_SLOTS:
            raise SwapError(Code.LIMIT, "slots")


def pairs_of(blocks: Iterable[tuple[int, int]]) -> array[int]:
    """Return a job's table from pairs (source block, destination block)."""
    return array("q", (number for pair in blocks for number in pair))


def pair_view(pairs: Buffer) -> memoryview:
    """Return a view of a table's numbers.

    Raises:
        SwapError: the buffer is not a whole number of pairs, or not contiguous.
    """
    view = memoryview(pairs)
    if view.nbytes % PAIR_BYTES or not view.c_contiguous:
        raise SwapError(Code.STRUCT, "pairs")
    return view.cast("B").cast("q")


def check_table(table: SwapTable | None, backend: str) -> None:
    """Check that a table was measured with this back end.

    Raises:
        SwapError: with the field.
    """
    if table is not None and table.backend != backend:
        raise SwapError(Code.CHOICE, "table")


def check_words(job: Job) -> None:
    """Check what the native interface cannot express: numbers beyond a word, lists of different lengths.

    Raises:
        SwapError: with the field.
    """
    if len(job.sources) != len(job.destinations):
        raise SwapError(Code.MISMATCH, "planes")
    for name, planes in (("sources", job.sources), ("destinations", job.destinations)):
        for index, plane in enumerate(planes):
            for part in ("base", "block_bytes", "stride_bytes", "blocks"):
                if not 0 <= getattr(plane, part) < WORD_END:
                    raise SwapError(Code.LIMIT, f"{name}[{index}].{part}")
