"""The swapper without a native library, so that everything works where there is no compiler.

It copies every job page by page, for every strategy, and reports that.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from autellix_backend.kernels.checks import check_job, check_options
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import (
    MAX_PENDING,
    WORD_END,
    Job,
    Strategy,
    SwapOptions,
    SwapStats,
    SwapTable,
    check_table,
)


class PythonSwapper:
    """Runs jobs on one worker thread, copying between addresses of this process."""

    backend = "python"

    def __init__(self, options: SwapOptions) -> None:
        check_options(options)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="autellix-swap")
        self._lock = threading.Lock()
        self._running: dict[int, Future[SwapStats]] = {}
        self._next_handle = 1
        self._is_closed = False

    def submit(self, job: Job) -> int:
        """Queue a job and return its handle."""
        with self._lock:
            if len(self._running) >= MAX_PENDING:
                raise SwapError(Code.BUSY, "handle")
            self._check_open()
            check_table(job.table, self.backend)
            future = self._worker.submit(_copy_pages, job, check_job(job))
            handle = self._next_handle
            self._next_handle += 1
            self._running[handle] = future
            return handle

    def poll(self, handle: int) -> SwapStats | None:
        """Return the result of a job, None while it runs."""
        future = self._find(handle)
        return self._finish(handle, future) if future.done() else None

    def wait(self, handle: int) -> SwapStats:
        """Wait for a job and return its result."""
        future = self._find(handle)
        future.exception()  # Waits; result() raises.
        return self._finish(handle, future)

    def calibrate(self) -> SwapTable:
        """Refuse: with one strategy there is nothing to choose."""
        raise SwapError(Code.BACKEND, "table")

    def pin(self, base: int, bytes_: int) -> None:
        """Do nothing: there is no device."""
        self._check_memory(base, bytes_)

    def unpin(self, base: int, bytes_: int) -> None:
        """Do nothing: there is no device."""
        self._check_memory(base, bytes_)

    def close(self) -> None:
        """Wait for all jobs and stop the worker."""
        self._is_closed = True
        self._worker.shutdown()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SwapError(Code.NULL, "context")

    def _check_memory(self, base: int, bytes_: int) -> None:
        self._check_open()
        if base == 0:
            raise SwapError(Code.NULL, "memory")
        if base < 0 or bytes_ <= 0 or base + bytes_ >= WORD_END:
            raise SwapError(Code.LIMIT, "memory")

    def _find(self, handle: int) -> Future[SwapStats]:
        self._check_open()
        with self._lock:
            future = self._running.get(handle)
        if future is None:
            raise SwapError(Code.HANDLE, "handle")
        return future

    def _finish(self, handle: int, future: Future[SwapStats]) -> SwapStats:
        with self._lock:
            # Another thread may have reported this end meanwhile.
            if self._running.pop(handle, None) is None:
                raise SwapError(Code.HANDLE, "handle")
        return future.result()


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
