"""The swapper without a native library: the same copies in the same order, made by the standard library."""

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
from autellix_backend.kernels.plan import Page, bytes_of, choose, coalesced, per_page, staged

CALIBRATION_BYTES = 2 << 20
"""The most that one measure copies; a small share of the native library's, as every copy costs far more."""
CALIBRATION_COUNTS = (1, 16, 256, 4096)


class PythonSwapper:
    """Runs jobs on one worker thread, copying between addresses of this process."""

    def __init__(self, options: SwapOptions) -> None:
        check_options(options)
        self._slot_bytes = options.slot_bytes
        # The worker's alone. Made when a staged job first needs it.
        self._slot: ctypes.Array[ctypes.c_char] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="autellix-swap")
        self._lock = threading.Lock()
        self._running: dict[int, Future[SwapStats]] = {}
        self._next_handle = 1
        self._is_closed = False

    @property
    def backend(self) -> str:
        """Return `python`."""
        return "python"

    def copy(self, job: Job) -> SwapStats:
        """Do a job and wait for it."""
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
        """Return what a job came to, or None while it is under way."""
        future = self._find(handle)
        return self._finish(handle, future) if future.done() else None

    def wait(self, handle: int) -> SwapStats:
        """Wait for a job's end and return what it came to."""
        future = self._find(handle)
        future.exception()  # waits, and leaves the raising to the one who takes the result
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
        transfers = self._run_staged(job) if strategy is Strategy.STAGED else _run_direct(job, strategy)
        return SwapStats(
            strategy=strategy,
            transfers=transfers,
            pages=len(job.sources) * len(job.pairs),
            bytes=bytes_of(job),
            seconds=time.perf_counter() - begun_s,
        )

    def _run_staged(self, job: CheckedJob) -> int:
        if self._slot is None:
            self._slot = ctypes.create_string_buffer(self._slot_bytes)
        slot = ctypes.addressof(self._slot)
        chunks = staged(job, self._slot_bytes)
        for chunk in chunks:
            into_slot, out_of_slot = (
                (chunk.tasks, chunk.runs) if job.direction is Direction.STORE else (chunk.runs, chunk.tasks)
            )
            _copy([(address, slot + offset, size) for address, offset, size in into_slot])
            _copy([(slot + offset, address, size) for address, offset, size in out_of_slot])
        return sum(len(chunk.runs) for chunk in chunks)


def _run_direct(job: CheckedJob, strategy: Strategy) -> int:
    pieces = per_page(job) if strategy is Strategy.PER_PAGE else coalesced(job)
    _copy(pieces)
    return len(pieces)


def _copy(pieces: list[Page]) -> None:
    for source, destination, size in pieces:
        ctypes.memmove(destination, source, size)


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
