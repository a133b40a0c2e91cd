"""The swapper without a native library: the standard library makes the same copies.

It needs no staging ring: a staged job is copied page by page and reports the transfers of staging.
"""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from autellix_backend.kernels.checks import CheckedJob, check_job, check_options
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import (
    MAX_PENDING,
    TABLE_COUNTS,
    TABLE_SIZES,
    WORD_END,
    Direction,
    Job,
    Plane,
    Strategy,
    SwapOptions,
    SwapStats,
    SwapTable,
    check_table,
)
from autellix_backend.kernels.plan import bytes_of, choose, coalesced, per_page, staged_transfers

CALIBRATION_BYTES = 2 << 20
"""The most that one measurement copies: little, as each copy costs far more than a native one."""
CALIBRATION_COUNTS = (1, 16, 256, 4096)


class PythonSwapper:
    """Runs jobs on one worker thread, copying between addresses of this process."""

    backend = "python"

    def __init__(self, options: SwapOptions) -> None:
        check_options(options)
        self._slot_bytes = options.slot_bytes
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="autellix-swap")
        self._lock = threading.Lock()
        self._running: dict[int, Future[SwapStats]] = {}
        self._next_handle = 1
        self._is_closed = False

    def copy(self, job: Job) -> SwapStats:
        """Run a job and wait for it."""
        return self._start(job).result()

    def submit(self, job: Job) -> int:
        """Queue a job and return its handle."""
        with self._lock:
            if len(self._running) >= MAX_PENDING:
                raise SwapError(Code.BUSY, "handle")
            future = self._start(job)
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
        """Measure this machine."""
        return SwapTable(backend=self.backend, seconds=_calibrate(self))

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

    def _start(self, job: Job) -> Future[SwapStats]:
        self._check_open()
        check_table(job.table, self.backend)
        checked = check_job(job)
        strategy = choose(checked, Strategy(job.strategy), job.table, self._slot_bytes)
        return self._worker.submit(self._run, checked, strategy)

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

    def _run(self, job: CheckedJob, strategy: Strategy) -> SwapStats:
        begun_s = time.perf_counter()
        pieces = coalesced(job) if strategy is Strategy.COALESCED else per_page(job)
        for source, destination, size in pieces:
            ctypes.memmove(destination, source, size)
        is_staged = strategy is Strategy.STAGED
        return SwapStats(
            strategy=strategy,
            transfers=staged_transfers(job, self._slot_bytes) if is_staged else len(pieces),
            pages=len(job.sources) * len(job.pairs),
            bytes=bytes_of(job),
            seconds=time.perf_counter() - begun_s,
        )


def _calibrate(swapper: PythonSwapper) -> tuple[float, ...]:
    near = ctypes.create_string_buffer(2 * CALIBRATION_BYTES + 8)
    far = ctypes.create_string_buffer(2 * CALIBRATION_BYTES + 8)
    bases = tuple(ctypes.addressof(memory) + -ctypes.addressof(memory) % 8 for memory in (near, far))
    seconds: list[float] = []
    for direction in Direction:
        for size in range(TABLE_SIZES):
            for count in range(TABLE_COUNTS):
                seconds.extend(_measure(swapper, bases, 4096 << size, count, direction))
    return tuple(seconds)


def _measure(
    swapper: PythonSwapper, bases: tuple[int, ...], size: int, count: int, direction: Direction
) -> list[float]:
    # Every second block of near memory, adjacent blocks of far memory: only staging can merge anything.
    pieces = max(min(CALIBRATION_COUNTS[count], CALIBRATION_BYTES // size), 1)
    planes = (Plane(bases[0], size, 2 * size, pieces), Plane(bases[1], size, size, pieces))
    source, destination = planes if direction is Direction.STORE else planes[::-1]
    job = CheckedJob(
        sources=(source,),
        destinations=(destination,),
        pairs=tuple((k, k) for k in range(pieces)),
        direction=direction,
    )
    strategies = (Strategy.PER_PAGE, Strategy.COALESCED, Strategy.STAGED)
    return [min(swapper._run(job, one).seconds for _ in range(2)) / pieces for one in strategies]
