"""What `gpu.py` runs on the device: memories, contestants, their checks and times. Needs torch with CUDA."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from gpu_plan import SLOT_BYTES, Cell, CellResult, job_of

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.job import Direction, Strategy, SwapOptions, SwapTable
from autellix_backend.kernels.native import SwapLibrary

Copy = Callable[[], None]
TRITON_PROGRAMS = 12
TRITON_CHUNK_BYTES = 8192
GEMM_ROWS, GEMM_IN, GEMM_OUT = 32, 4096, 14336
GEMMS = 2000


@triton.jit
def _move(sources, destinations, words, count, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    # Programs stride over the pages, each page word by word in chunks; one side is pinned host memory.
    page = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    while page < count:
        source = tl.load(sources + page).to(tl.pointer_type(tl.int64))
        destination = tl.load(destinations + page).to(tl.pointer_type(tl.int64))
        for begin in range(0, words, CHUNK):
            at = begin + lane
            tl.store(destination + at, tl.load(source + at, mask=at < words, other=0), mask=at < words)
        page += tl.num_programs(0)


class BatchCall:
    """The driver's `cuMemcpyBatchAsync`, called directly."""

    class _Attributes(ctypes.Structure):
        _fields_ = (
            ("order", ctypes.c_uint),
            ("hints", ctypes.c_uint * 4),
            ("flags", ctypes.c_uint),
        )

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")

    def __call__(
        self, sources: np.ndarray, destinations: np.ndarray, sizes: np.ndarray, stream: torch.cuda.Stream
    ) -> None:
        """Queue one batch; sources are read in the order of the stream."""
        attributes, first, failed = self._Attributes(order=1), ctypes.c_size_t(0), ctypes.c_size_t(0)
        error = self._driver.cuMemcpyBatchAsync(
            destinations.ctypes.data_as(ctypes.c_void_p),
            sources.ctypes.data_as(ctypes.c_void_p),
            sizes.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.byref(failed),
            ctypes.c_void_p(stream.cuda_stream),
        )
        if error:
            raise RuntimeError(f"cuMemcpyBatchAsync failed: {error}")


class SwapBench:
    """The two memories, and every way to move pages between them."""

    def __init__(self, library: SwapLibrary, most_bytes: int) -> None:
        self.swapper: Swapper = library.open("cuda", SwapOptions(slot_bytes=SLOT_BYTES))
        self.near = torch.empty(2 * most_bytes, dtype=torch.uint8, device="cuda")
        self.far = torch.empty(most_bytes, dtype=torch.uint8, pin_memory=True)
        self.pattern = torch.randint(0, 255, (2 * most_bytes,), dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()
        self.batch = BatchCall()
        self.table: SwapTable = self.swapper.calibrate()

    def contestants(self, cell: Cell, direction: Direction) -> tuple[dict[str, Copy], dict[str, int]]:
        """Return copies that queue and wait, and the transfers of ours."""
        sources, destinations = self._addresses(cell, direction)
        sizes = np.full(len(sources), cell.page_bytes, dtype=np.uint64)
        chunk = min(triton.next_power_of_2(cell.page_bytes), TRITON_CHUNK_BYTES) // 8
        # The addresses go along with every job, as they would in an engine.
        pinned = [torch.from_numpy(one.astype(np.int64)).pin_memory() for one in (sources, destinations)]

        def batch() -> None:
            self.batch(sources, destinations, sizes, self.stream)
            self.stream.synchronize()

        def by_triton() -> None:
            with torch.cuda.stream(self.stream):
                tables = [one.to("cuda", non_blocking=True) for one in pinned]
                programs = (min(TRITON_PROGRAMS, len(sources)),)
                _move[programs](*tables, cell.page_bytes // 8, len(sources), CHUNK=chunk)
            self.stream.synchronize()

        copies: dict[str, Copy] = {"batch": batch, "triton": by_triton}
        transfers: dict[str, int] = {}
        for strategy in Strategy:
            job = self._job(cell, direction, strategy)
            name = f"ours, {strategy.name.lower()}"
            copies[name] = lambda job=job: self.swapper.copy(job)  # type: ignore[misc]
            transfers[name] = self.swapper.copy(job).transfers
        return copies, transfers

    def check(self, cell: Cell, direction: Direction, name: str, copy: Copy) -> None:
        """Copy onto cleared memory and compare every byte, those between the pages included.

        Raises:
            SystemExit: a byte differs.
        """
        near, far = self._views(self.near, self.far, cell)
        pattern, _ = self._views(self.pattern, self.far, cell)
        every_second = pattern[:, ::2].transpose(0, 1)
        if direction is Direction.STORE:
            near.copy_(pattern)
            far.zero_()
            copy()
            is_right = torch.equal(far.cuda(), every_second) and torch.equal(near, pattern)
        else:
            far.copy_(every_second)
            near.zero_()
            copy()
            is_right = torch.equal(near[:, ::2].transpose(0, 1), every_second) and not near[:, 1::2].any()
        if not is_right:
            raise SystemExit(f"{name} did not copy what it should: {cell}, {direction.name}")

    def ceiling_gb_per_s(self, direction: Direction) -> float:
        """Return the speed of one large pinned copy."""
        near, far = self.near[: self.far.numel()], self.far
        best = 0.0
        for _ in range(5):
            torch.cuda.synchronize()
            begun_s = time.perf_counter()
            far.copy_(near, non_blocking=True) if direction is Direction.STORE else near.copy_(
                far, non_blocking=True
            )
            torch.cuda.synchronize()
            best = max(best, self.far.numel() / (time.perf_counter() - begun_s) / 1e9)
        return best

    def _views(self, near: torch.Tensor, far: torch.Tensor, cell: Cell) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            near[: 2 * cell.bytes].view(cell.layers, 2 * cell.blocks, cell.page_bytes),
            far[: cell.bytes].view(cell.blocks, cell.layers, cell.page_bytes),
        )

    def _job(self, cell: Cell, direction: Direction, strategy: Strategy) -> Any:
        job = job_of(cell, self.near.data_ptr(), self.far.data_ptr(), direction, strategy)
        return replace(job, table=self.table)

    def _addresses(self, cell: Cell, direction: Direction) -> tuple[np.ndarray, np.ndarray]:
        layer = np.arange(cell.layers, dtype=np.uint64)[:, None]
        block = np.arange(cell.blocks, dtype=np.uint64)[None, :]
        page = np.uint64(cell.page_bytes)
        near = (
            np.uint64(self.near.data_ptr())
            + (layer * np.uint64(2 * cell.blocks) + np.uint64(2) * block) * page
        )
        far = np.uint64(self.far.data_ptr()) + (block * np.uint64(cell.layers) + layer) * page
        pair = (near.ravel(), far.ravel())
        return pair if direction is Direction.STORE else pair[::-1]


def _times(copies: dict[str, Copy], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in copies}
    for _ in range(rounds):
        for name, copy in copies.items():
            torch.cuda.synchronize()
            begun_s = time.perf_counter()
            copy()
            seconds[name].append(time.perf_counter() - begun_s)
    return {name: statistics.median(every) for name, every in seconds.items()}


def _gemm_s(beside: Copy | None) -> float:
    """Return how long the queued GEMMs take on the device while `beside` runs again and again."""
    left = torch.randn(GEMM_ROWS, GEMM_IN, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(GEMM_IN, GEMM_OUT, device="cuda", dtype=torch.bfloat16)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(work):
        out = left @ right
        begun.record()
        for _ in range(GEMMS):
            torch.matmul(left, right, out=out)
        ended.record()
    while not ended.query():
        if beside is None:
            ended.synchronize()
        else:
            beside()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) / 1e3


def run_all(library: SwapLibrary, plan: list[Cell], *, is_quick: bool) -> dict[str, Any]:
    """Return results, ceilings and the slowdowns of a GEMM."""
    bench = SwapBench(library, max(cell.bytes for cell in plan))
    ceilings = {direction: bench.ceiling_gb_per_s(direction) for direction in Direction}
    results: list[CellResult] = []
    for direction, cell in itertools.product(Direction, plan):
        copies, transfers = bench.contestants(cell, direction)
        for name, copy in copies.items():
            bench.check(cell, direction, name, copy)
        for name, seconds in _times(copies, 5 if is_quick else 15).items():
            speed = cell.bytes / seconds / 1e9
            results.append(
                CellResult(
                    direction=direction.name.lower(),
                    page_kib=cell.page_bytes >> 10,
                    blocks=cell.blocks,
                    layers=cell.layers,
                    contestant=name,
                    seconds=seconds,
                    gb_per_s=speed,
                    share_of_ceiling=speed / ceilings[direction],
                    transfers=transfers.get(name),
                )
            )
    return {
        "device": torch.cuda.get_device_name(),
        "ceilings_gb_per_s": {one.name.lower(): speed for one, speed in ceilings.items()},
        "table": bench.table.seconds,
        "results": results,
        "slowdowns": _slowdowns(bench),
    }


def _slowdowns(bench: SwapBench) -> dict[str, float]:
    _gemm_s(None)  # warms up
    alone_s = _gemm_s(None)
    cell = Cell(32 << 10, 256, 8)
    factors: dict[str, float] = {}
    for direction in Direction:
        copies, _ = bench.contestants(cell, direction)
        for name, copy in copies.items():
            factors[f"{direction.name.lower()}, {name}"] = _gemm_s(copy) / alone_s
    return factors
