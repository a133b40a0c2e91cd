"""Time the swap library on the CPU beside copies of single pages by torch, and beside memcpy, in one run.

Two pieces of host memory stand for the accelerator's and the host's. The cache has several layers, each a
row of blocks (LBHNC). `scattered`: blocks from anywhere go to memory that keeps a block's layers together.
`runs`: blocks come in runs of 16, and far memory has the cache's layout. Every contestant copies the same
pages; rounds alternate between them, and the best round counts. GB/s are bytes moved per second, once each;
per CPU second (of all threads) they depend less on other load. `memcpy` is one call for as
many bytes: the ceiling.

    python benchmarks/swap/cpu.py [--mib 32] [--rounds 7] [--pages-kib 8 16 32 64 128 256]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import random
import time
from collections.abc import Callable

import torch

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.job import Direction, Job, Plane, Strategy, SwapOptions, pairs_of
from autellix_backend.kernels.swap import open_swapper

LAYERS = 8
RUN_BLOCKS = 16
"""How many neighbours a run has."""
TORCH = "torch, per page"
Copy = Callable[[], None]


class Field:
    """The memories and the table that all contestants of one page size share."""

    def __init__(self, page_bytes: int, total_bytes: int, *, has_runs: bool) -> None:
        self.page_bytes = page_bytes
        self.count = max(total_bytes // (page_bytes * LAYERS), RUN_BLOCKS)
        self.total_bytes = self.count * page_bytes * LAYERS
        blocks = 2 * self.count
        self.near = torch.randint(0, 255, (LAYERS, blocks, page_bytes), dtype=torch.uint8)
        self.far = torch.zeros((self.count, LAYERS, page_bytes), dtype=torch.uint8)
        if has_runs:
            self.far = torch.zeros((LAYERS, self.count, page_bytes), dtype=torch.uint8).transpose(0, 1)
        self.table = list(zip(_chosen(blocks, self.count, has_runs=has_runs), range(self.count), strict=True))

    def job(self, strategy: Strategy) -> Job:
        """Return the store of all chosen blocks."""
        return Job(
            sources=tuple(
                Plane(layer.data_ptr(), self.page_bytes, self.page_bytes, layer.shape[0])
                for layer in self.near
            ),
            destinations=tuple(
                Plane(self.far[0, i].data_ptr(), self.page_bytes, self.far.stride(0), self.count)
                for i in range(LAYERS)
            ),
            pairs=pairs_of(self.table),
            direction=Direction.STORE,
            strategy=strategy,
        )

    def is_right(self) -> bool:
        """Return whether every page arrived, and clear the far memory."""
        chosen = torch.tensor([source for source, _ in self.table])
        is_equal = bool(torch.equal(self.far, self.near[:, chosen].transpose(0, 1)))
        self.far.zero_()
        return is_equal


def _chosen(blocks: int, count: int, *, has_runs: bool) -> list[int]:
    dice = random.Random(count)
    if not has_runs:
        return dice.sample(range(blocks), count)
    starts = dice.sample(range(blocks // RUN_BLOCKS), -(-count // RUN_BLOCKS))
    return [start * RUN_BLOCKS + k for start in starts for k in range(RUN_BLOCKS)][:count]


def copy_with_torch(field: Field) -> None:
    """Copy page by page, as tensors."""
    for (source, destination), layer in itertools.product(field.table, range(LAYERS)):
        field.far[destination, layer].copy_(field.near[layer, source])


def contestants(field: Field, swappers: dict[str, Swapper]) -> tuple[dict[str, Copy], dict[str, int]]:
    """Return the contestants, and the number of transfers of each of ours."""
    copies: dict[str, Copy] = {TORCH: lambda: copy_with_torch(field)}
    transfers: dict[str, int] = {}
    for (name, swapper), strategy in itertools.product(
        swappers.items(), (Strategy.PER_PAGE, Strategy.COALESCED, Strategy.STAGED)
    ):
        label = f"{name}, {strategy.name.lower()}"
        job = field.job(strategy)
        transfers[label] = swapper.wait(swapper.submit(job)).transfers
        if not field.is_right():
            raise SystemExit(f"{label} did not copy what it should")
        copies[label] = lambda swapper=swapper, job=job: swapper.wait(swapper.submit(job))  # type: ignore[misc]
    return copies, transfers


def measure(field: Field, copies: dict[str, Copy], rounds: int) -> dict[str, tuple[float, float]]:
    """Return every contestant's least wall and CPU seconds, rounds in turn; `memcpy` among them."""
    source = torch.randint(0, 255, (field.total_bytes,), dtype=torch.uint8)
    target = torch.zeros(field.total_bytes, dtype=torch.uint8)
    every = {
        **copies,
        "memcpy": lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), field.total_bytes),
    }
    best = dict.fromkeys(every, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, copy in every.items():
            begun_s, cpu_begun_s = time.perf_counter(), time.process_time()
            copy()
            wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_begun_s
            best[name] = (min(best[name][0], wall_s), min(best[name][1], cpu_s))
    return best


def main() -> None:
    """Run and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=32, help="bytes that each contestant moves per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pages-kib", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="threads of the native library"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    swappers: dict[str, Swapper] = {
        f"native {threads}": open_swapper("cpu", SwapOptions(threads=threads))
        for threads in arguments.threads
    }
    swappers["python"] = open_swapper("python")
    form = "{:>8} {:>10} {:<22} {:>7} {:>9} {:>10} {:>8}"
    print(form.format("page KiB", "blocks", "contestant", "GB/s", "GB/CPU s", "transfers", "x torch"))
    for page_kib, has_runs in itertools.product(arguments.pages_kib, (False, True)):
        field = Field(page_kib << 10, arguments.mib << 20, has_runs=has_runs)
        copies, transfers = contestants(field, swappers)
        best = measure(field, copies, arguments.rounds)
        for name, (wall_s, cpu_s) in best.items():
            speeds = [f"{field.total_bytes / seconds / 1e9:.2f}" for seconds in (wall_s, cpu_s)]
            times_torch = f"{best[TORCH][1] / cpu_s:.2f}"
            blocks = "runs" if has_runs else "scattered"
            print(form.format(page_kib, blocks, name, *speeds, transfers.get(name, ""), times_torch))


if __name__ == "__main__":
    main()
