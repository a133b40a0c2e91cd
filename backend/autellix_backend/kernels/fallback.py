"""The swapper without a native library, so that everything works where there is no compiler.

It copies every job page by page, for every strategy, and reports that. Of the native library's checks it has
only those that keep a copy inside of its planes.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import Job, Strategy, SwapStats, SwapTable, pair_view


class PythonSwapper:
    """Runs jobs on one worker thread, copying between addresses of this process."""

    backend = "python"

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="autellix-swap")
        self._running: dict[int, Future[SwapStats]] = {}
        self._handles = itertools.count(1)

    def submit(self, job: Job) -> int:
        """Queue a job and return its handle."""
        numbers = pair_view(job.pairs).tolist()
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        _check(job, pairs)
        handle = next(self._handles)
        self._running[handle] = self._worker.submit(_copy_pages, job, pairs)
        return handle

    def poll(self, handle: int) -> SwapStats | None:
        """Return the result of a job, None while it runs."""
        future = self._running.get(handle)
        return None if future is not None and not future.done() else self.wait(handle)

    def wait(self, handle: int) -> SwapStats:
        """Wait for a job and return its result."""
        future = self._running.pop(handle, None)
        if future is None:
            raise SwapError(Code.HANDLE, "handle")
        return future.result()

    def calibrate(self) -> SwapTable:
        """Refuse: with one strategy there is nothing to choose."""
        raise SwapError(Code.BACKEND, "table")

    def pin(self, base: int, bytes_: int) -> None:
        """Do nothing: there is no device."""

    def unpin(self, base: int, bytes_: int) -> None:
        """Do nothing: there is no device."""

    def close(self) -> None:
        """Wait for all jobs and stop the worker."""
        self._worker.shutdown()


def _check(job: Job, pairs: Sequence[tuple[int, int]]) -> None:
    for source, destination in zip(job.sources, job.destinations, strict=True):
        if source.block_bytes != destination.block_bytes:
            raise SwapError(Code.MISMATCH, "destinations")
        for from_block, to_block in pairs:
            if not (0 <= from_block < source.blocks and 0 <= to_block < destination.blocks):
                raise SwapError(Code.RANGE, "pairs")


def _copy_pages(job: Job, pairs: Sequence[tuple[int, int]]) -> SwapStats:
    begun_s = time.perf_counter()
    for source, destination in zip(job.sources, job.destinations, strict=True):
        for from_block, to_block in pairs:
            ctypes.memmove(
                destination.base + to_block * destination.stride_bytes,
                source.base + from_block * source.stride_bytes,
                source.block_bytes,
            )
    pages = len(job.sources) * len(pairs)
    return SwapStats(
        strategy=Strategy.PER_PAGE,
        transfers=pages,
        pages=pages,
        bytes=len(pairs) * sum(plane.block_bytes for plane in job.sources),
        seconds=time.perf_counter() - begun_s,
    )
