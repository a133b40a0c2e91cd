"""The ctypes binding of the native library, which serves every Python version."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p, sizeof
from pathlib import Path
from typing import ClassVar

from autellix_backend.kernels.errors import FIELDS, Code, SwapError
from autellix_backend.kernels.job import (
    TABLE_CELLS,
    WORD_END,
    Job,
    Plane,
    Strategy,
    SwapOptions,
    SwapStats,
    SwapTable,
    check_table,
    check_words,
    pair_view,
)

LIBRARY_PATH = Path(__file__).with_name("libautellix_swap.so")
VERSION = 2
BACKENDS = ("cpu", "cuda")
"""The back ends by the library's numbers."""
AFTER_STREAM = 1
SOURCE_STABLE = 2


class _Plane(ctypes.Structure):
    _fields_: ClassVar = [
        ("base", c_uint64),
        ("block_bytes", c_uint64),
        ("stride_bytes", c_uint64),
        ("blocks", c_uint64),
    ]


class _Table(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("backend", c_uint32),
        ("seconds", c_double * TABLE_CELLS),
    ]


class _Job(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("strategy", c_uint32),
        ("direction", c_uint32),
        ("flags", c_uint32),
        ("sources", POINTER(_Plane)),
        ("destinations", POINTER(_Plane)),
        ("plane_count", c_uint64),
        ("pairs", POINTER(c_int64)),
        ("pair_count", c_uint64),
        ("table", POINTER(_Table)),
        ("after_stream", c_uint64),
    ]


class _Stats(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("strategy", c_uint32),
        ("transfers", c_uint64),
        ("pages", c_uint64),
        ("bytes", c_uint64),
        ("seconds", c_double),
    ]


class _Fault(ctypes.Structure):
    _fields_: ClassVar = [
        ("code", c_int32),
        ("field", c_int32),
        ("index", c_uint64),
        ("device_error", c_int32),
        ("reserved", c_int32),
    ]


class _Options(ctypes.Structure):
    _fields_: ClassVar = [
        ("struct_bytes", c_uint32),
        ("backend", c_uint32),
        ("device", c_uint32),
        ("threads", c_uint32),
        ("slot_bytes", c_uint64),
        ("slots", c_uint32),
        ("reserved", c_uint32),
    ]


class SwapLibrary:
    """The loaded native library."""

    def __init__(self, path: Path = LIBRARY_PATH) -> None:
        """Load the library.

        Raises:
            OSError: there is none at the path, it cannot be loaded, or its version is another.
        """
        self._library = ctypes.CDLL(str(path))
        self._declare()
        version = self._library.ax_version()
        if version != VERSION:
            raise OSError(f"{path} is of version {version}, expected {VERSION}: run scripts/build_native.py")

    def has(self, backend: str) -> bool:
        """Return whether the back end `cpu` or `cuda` is in this build and has a device."""
        return bool(self._library.ax_available(BACKENDS.index(backend)))

    def open(self, backend: str, options: SwapOptions) -> NativeSwapper:
        """Open a swapper.

        Raises:
            SwapError: the back end is not available: it is not in this build, or its device cannot serve.
        """
        given = _Options(
            struct_bytes=sizeof(_Options),
            backend=BACKENDS.index(backend),
            device=options.device,
            threads=options.threads,
            slot_bytes=options.slot_bytes,
            slots=options.slots,
        )
        context, fault = c_void_p(), _Fault()
        self._library.ax_open(byref(given), byref(context), byref(fault))
        _raise(fault)
        return NativeSwapper(self._library, context, backend)

    def _declare(self) -> None:
        library = self._library
        fault = POINTER(_Fault)
        job, stats, handle = POINTER(_Job), POINTER(_Stats), POINTER(c_uint64)
        signatures = {
            "ax_version": (c_uint32, ()),
            "ax_available": (c_int32, (c_uint32,)),
            "ax_open": (c_int32, (POINTER(_Options), POINTER(c_void_p), fault)),
            "ax_close": (None, (c_void_p,)),
            "ax_submit": (c_int32, (c_void_p, job, handle, fault)),
            "ax_poll": (c_int32, (c_void_p, c_uint64, stats, fault)),
            "ax_wait": (c_int32, (c_void_p, c_uint64, stats, fault)),
            "ax_calibrate": (c_int32, (c_void_p, POINTER(_Table), fault)),
            "ax_pin": (c_int32, (c_void_p, c_uint64, c_uint64, fault)),
            "ax_unpin": (c_int32, (c_void_p, c_uint64, c_uint64, fault)),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments


class NativeSwapper:
    """Runs jobs in the native library. Calls release the GIL."""

    def __init__(self, library: ctypes.CDLL, context: c_void_p, backend: str) -> None:
        self._library = library
        self._context: c_void_p | None = context
        self.backend = backend
        """`cpu` or `cuda`."""

    def submit(self, job: Job) -> int:
        """Queue a job and return its handle."""
        handle = c_uint64()
        self._call("ax_submit", byref(_native_job(job, self.backend)), byref(handle))
        return handle.value

    def poll(self, handle: int) -> SwapStats | None:
        """Return the result of a job, None while it runs."""
        stats = _Stats(struct_bytes=sizeof(_Stats))
        is_pending = self._call("ax_poll", handle, byref(stats)) == Code.PENDING
        return None if is_pending else _read(stats)

    def wait(self, handle: int) -> SwapStats:
        """Wait for a job and return its result."""
        stats = _Stats(struct_bytes=sizeof(_Stats))
        self._call("ax_wait", handle, byref(stats))
        return _read(stats)

    def calibrate(self) -> SwapTable:
        """Measure this machine."""
        table = _Table(struct_bytes=sizeof(_Table), backend=BACKENDS.index(self.backend))
        self._call("ax_calibrate", byref(table))
        return SwapTable(backend=self.backend, seconds=tuple(table.seconds))

    def pin(self, base: int, bytes_: int) -> None:
        """Page-lock host memory."""
        self._change_pins("ax_pin", base, bytes_)

    def unpin(self, base: int, bytes_: int) -> None:
        """Undo `pin` for the same range."""
        self._change_pins("ax_unpin", base, bytes_)

    def close(self) -> None:
        """Wait for all jobs and free everything."""
        context, self._context = self._context, None
        self._library.ax_close(context)

    def _change_pins(self, function: str, base: int, bytes_: int) -> None:
        if not 0 <= base < WORD_END or not 0 <= bytes_ < WORD_END:
            raise SwapError(Code.LIMIT, "memory")
        self._call(function, base, bytes_)

    def _call(self, function: str, *arguments: object) -> int:
        fault = _Fault()
        code: int = getattr(self._library, function)(self._context, *arguments, byref(fault))
        if code != Code.PENDING:
            _raise(fault)
        return code


def _native_planes(planes: tuple[Plane, ...]) -> ctypes.Array[_Plane]:
    return (_Plane * len(planes))(*[_Plane(p.base, p.block_bytes, p.stride_bytes, p.blocks) for p in planes])


def _native_job(job: Job, backend: str) -> _Job:
    check_table(job.table, backend)
    check_words(job)
    numbers = pair_view(job.pairs)
    # A view of the caller's memory where possible: ctypes needs a writable buffer.
    kind = c_int64 * len(numbers)
    pairs = kind.from_buffer_copy(numbers) if numbers.readonly else kind.from_buffer(numbers)
    flags = (job.after_stream is not None) * AFTER_STREAM | job.is_source_stable * SOURCE_STABLE
    return _Job(
        struct_bytes=sizeof(_Job),
        strategy=job.strategy,
        direction=job.direction,
        flags=flags,
        # ctypes keeps the targets of these pointers alive as long as the structure.
        sources=_native_planes(job.sources),
        destinations=_native_planes(job.destinations),
        plane_count=len(job.sources),
        pairs=ctypes.cast(pairs, POINTER(c_int64)),
        pair_count=len(numbers) // 2,
        table=None if job.table is None else ctypes.pointer(_native_table(job.table)),
        after_stream=job.after_stream or 0,
    )


def _native_table(table: SwapTable) -> _Table:
    return _Table(sizeof(_Table), BACKENDS.index(table.backend), (c_double * TABLE_CELLS)(*table.seconds))


def _read(stats: _Stats) -> SwapStats:
    return SwapStats(
        strategy=Strategy(stats.strategy),
        transfers=stats.transfers,
        pages=stats.pages,
        bytes=stats.bytes,
        seconds=stats.seconds,
    )


def _raise(fault: _Fault) -> None:
    if fault.code:
        raise SwapError(Code(fault.code), FIELDS[fault.field].format(fault.index), fault.device_error)
