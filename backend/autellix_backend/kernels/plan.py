"""The fallback's plan of a checked job: the same copies and transfers as the native library's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autellix_backend.kernels.checks import CheckedJob
from autellix_backend.kernels.job import TABLE_COUNTS, TABLE_SIZES, Direction, Plane, Strategy, SwapTable

Page = tuple[int, int, int]
"""Source address, destination address, bytes."""


def bytes_of(job: CheckedJob) -> int:
    """Return the number of bytes that a job moves."""
    return sum(plane.block_bytes for plane in job.sources) * len(job.pairs)


def per_page(job: CheckedJob) -> list[Page]:
    """Return one copy for each page."""
    return list(_pages(job, range(len(job.sources)), range(len(job.pairs)), is_block_major=False))


def coalesced(job: CheckedJob) -> list[Page]:
    """Return copies in which pages adjacent in both memories are one."""
    by_destination = sorted(range(len(job.pairs)), key=lambda k: job.pairs[k][1])
    is_block_major = _is_interleaved(job.sources) and _is_interleaved(job.destinations)
    pieces: list[Page] = []
    for page in _pages(job, _by_base(job.destinations), by_destination, is_block_major=is_block_major):
        if pieces and all(pieces[-1][side] + pieces[-1][2] == page[side] for side in (0, 1)):
            pieces[-1] = (*pieces[-1][:2], pieces[-1][2] + page[2])
        else:
            pieces.append(page)
    return pieces


def staged_transfers(job: CheckedJob, slot_bytes: int) -> int:
    """Return the transfers of staging: runs of adjacent pages in far memory, cut at the slots of the ring."""
    is_load = job.direction is Direction.LOAD
    far = job.sources if is_load else job.destinations
    order = sorted(range(len(job.pairs)), key=lambda k: job.pairs[k][0 if is_load else 1])
    transfers, free, run_end = 0, 0, -1
    for source, destination, size in _pages(job, _by_base(far), order, is_block_major=_is_interleaved(far)):
        begin = source if is_load else destination
        # A page begins a run unless it follows the last one, and one more in each slot that it reaches into.
        transfers += free > 0 and begin != run_end
        run_end, entered = begin + size, -(-max(0, size - free) // slot_bytes)
        transfers += entered
        free += entered * slot_bytes - size
    return transfers


def choose(job: CheckedJob, strategy: Strategy, table: SwapTable | None, slot_bytes: int) -> Strategy:
    """Return the requested strategy; for AUTO the one that the table expects to be fastest."""
    if strategy is not Strategy.AUTO:
        return strategy
    if table is None or not job.pairs:
        return Strategy.COALESCED
    total, pages = bytes_of(job), len(job.sources) * len(job.pairs)
    pieces = len(coalesced(job))
    counts = {Strategy.PER_PAGE: pages, Strategy.COALESCED: pieces, Strategy.STAGED: pieces}
    costs = {one: _expected_s(table, job.direction, one, count, total) for one, count in counts.items()}
    best = Strategy.COALESCED
    if costs[Strategy.PER_PAGE] < costs[best]:
        best = Strategy.PER_PAGE
    # A slot that holds less than a page cannot gather anything.
    if costs[Strategy.STAGED] < costs[best] and slot_bytes > total // pages:
        best = Strategy.STAGED
    return best


def _pages(
    job: CheckedJob, planes: Sequence[int], pairs: Sequence[int], *, is_block_major: bool
) -> Iterator[Page]:
    order = (
        ((i, k) for k in pairs for i in planes) if is_block_major else ((i, k) for i in planes for k in pairs)
    )
    for i, k in order:
        source, destination = job.sources[i], job.destinations[i]
        from_block, to_block = job.pairs[k]
        yield (
            source.base + from_block * source.stride_bytes,
            destination.base + to_block * destination.stride_bytes,
            source.block_bytes,
        )


def _is_interleaved(planes: Sequence[Plane]) -> bool:
    stride = planes[0].stride_bytes
    span = max(p.base + p.block_bytes for p in planes) - min(p.base for p in planes)
    return len(planes) > 1 and all(p.stride_bytes == stride for p in planes) and span <= stride


def _by_base(planes: Sequence[Plane]) -> list[int]:
    return sorted(range(len(planes)), key=lambda i: planes[i].base)


def _expected_s(table: SwapTable, direction: Direction, strategy: Strategy, pieces: int, total: int) -> float:
    each = max(total // pieces, 1)
    size = min(max(each.bit_length() - 13, 0), TABLE_SIZES - 1)
    count = 0 if pieces < 8 else 1 if pieces < 64 else 2 if pieces < 1024 else 3
    cell = ((direction * TABLE_SIZES + size) * TABLE_COUNTS + count) * 3 + strategy
    return table.seconds[cell] * (total / (4096 << size))
