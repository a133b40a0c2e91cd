"""The fallback's checks of a job: the native library's, in the same order, with the same errors."""

from __future__ import annotations

from collections.abc import Sequence

from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import (
    ALIGNMENT,
    MAX_BLOCK_BYTES,
    MAX_BLOCKS,
    MAX_DEVICES,
    MAX_PAIRS,
    MAX_PLANES,
    MAX_SLOT_BYTES,
    MAX_SLOTS,
    MAX_THREADS,
    MIN_SLOT_BYTES,
    WORD_END,
    Direction,
    Job,
    Plane,
    Strategy,
    SwapOptions,
    check_words,
    pair_view,
)


def check_options(options: SwapOptions) -> None:
    """Check the options of a swapper.

    Raises:
        SwapError: with the field.
    """
    if not 0 <= options.device < MAX_DEVICES:
        raise SwapError(Code.LIMIT, "device")
    if not 0 < options.threads <= MAX_THREADS:
        raise SwapError(Code.LIMIT, "threads")
    if not MIN_SLOT_BYTES <= options.slot_bytes <= MAX_SLOT_BYTES:
        raise SwapError(Code.LIMIT, "slot_bytes")
    if options.slot_bytes % MIN_SLOT_BYTES:
        raise SwapError(Code.ALIGN, "slot_bytes")
    if not 2 <= options.slots <= MAX_SLOTS:
        raise SwapError(Code.LIMIT, "slots")


def check_job(job: Job) -> tuple[tuple[int, int], ...]:
    """Check a job and return its pairs.

    Raises:
        SwapError: with the first invalid field.
    """
    check_words(job)
    numbers = pair_view(job.pairs)
    if job.strategy not in tuple(Strategy):
        raise SwapError(Code.CHOICE, "strategy")
    if job.direction not in tuple(Direction):
        raise SwapError(Code.CHOICE, "direction")
    if not 0 < len(job.sources) <= MAX_PLANES:
        raise SwapError(Code.LIMIT, "planes")
    if len(numbers) // 2 > MAX_PAIRS:
        raise SwapError(Code.LIMIT, "pairs")
    for index, (source, destination) in enumerate(zip(job.sources, job.destinations, strict=True)):
        _check_plane(source, f"sources[{index}]")
        _check_plane(destination, f"destinations[{index}]")
        if source.block_bytes != destination.block_bytes:
            raise SwapError(Code.MISMATCH, f"destinations[{index}].block_bytes")
    pairs = tuple(zip(numbers[::2].tolist(), numbers[1::2].tolist(), strict=True))
    _check_pairs(pairs, job)
    _check_overlap(job)
    return pairs


def _check_plane(plane: Plane, name: str) -> None:
    if plane.base == 0:
        raise SwapError(Code.NULL, f"{name}.base")
    if not 0 < plane.block_bytes <= MAX_BLOCK_BYTES:
        raise SwapError(Code.LIMIT, f"{name}.block_bytes")
    if not 0 < plane.blocks <= MAX_BLOCKS:
        raise SwapError(Code.LIMIT, f"{name}.blocks")
    for part in ("base", "block_bytes", "stride_bytes"):
        if getattr(plane, part) % ALIGNMENT:
            raise SwapError(Code.ALIGN, f"{name}.{part}")
    if plane.stride_bytes < plane.block_bytes:
        raise SwapError(Code.STRIDE, f"{name}.stride_bytes")
    if _end(plane) >= WORD_END:
        raise SwapError(Code.OVERFLOW, name)


def _end(plane: Plane) -> int:
    return plane.base + (plane.blocks - 1) * plane.stride_bytes + plane.block_bytes


def _check_pairs(pairs: Sequence[tuple[int, int]], job: Job) -> None:
    sources = min(plane.blocks for plane in job.sources)
    destinations = min(plane.blocks for plane in job.destinations)
    for index, (source, destination) in enumerate(pairs):
        if not 0 <= source < sources:
            raise SwapError(Code.RANGE, f"pairs[{index}].source")
        if not 0 <= destination < destinations:
            raise SwapError(Code.RANGE, f"pairs[{index}].destination")
    written: set[int] = set()
    for index, (_, destination) in enumerate(pairs):
        if destination in written:
            raise SwapError(Code.TWICE, f"pairs[{index}].destination")
        written.add(destination)


def _check_overlap(job: Job) -> None:
    # Sources sort before destinations that begin at the same address.
    extents = sorted(
        (plane.base, is_destination, index, _end(plane))
        for is_destination, planes in ((False, job.sources), (True, job.destinations))
        for index, plane in enumerate(planes)
    )
    ends = {False: 0, True: 0}
    for begin, is_destination, index, end in extents:
        if begin < ends[not is_destination]:
            raise SwapError(Code.OVERLAP, f"{'destinations' if is_destination else 'sources'}[{index}]")
        ends[is_destination] = max(ends[is_destination], end)
    cluster: list[int] = []
    cluster_end = 0
    for begin, is_destination, index, end in extents:
        if not is_destination:
            continue
        if begin >= cluster_end:
            _check_cluster(job.destinations, cluster)
            cluster = []
        cluster.append(index)
        cluster_end = max(cluster_end, end)
    _check_cluster(job.destinations, cluster)


def _check_cluster(planes: Sequence[Plane], cluster: list[int]) -> None:
    # Planes whose extents overlap are valid if they interleave: one stride, no shared byte of its period.
    if len(cluster) < 2:
        return
    stride = planes[cluster[0]].stride_bytes
    for index in cluster:
        if planes[index].stride_bytes != stride:
            raise SwapError(Code.OVERLAP, f"destinations[{index}]")
    phases = sorted((planes[index].base % stride, index) for index in cluster)
    following = [*(phase for phase, _ in phases[1:]), phases[0][0] + stride]
    for (phase, index), after in zip(phases, following, strict=True):
        if after - phase < planes[index].block_bytes:
            raise SwapError(Code.OVERLAP, f"destinations[{index}]")
