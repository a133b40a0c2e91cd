"""The plan of `swap_gpu.py`: sizes of jobs, results, and their comparison with the aims of the design."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

KIB = 1 << 10
MOST_BYTES = 1 << 30
"""The most bytes that one job moves: larger cells are left out."""
AIM_TRANSFERS, AIM_SPEED, AIM_CEILING = 32, 3.0, 0.9
STOCK_KERNEL_KIB, STOCK_KERNEL_PAGES = 28, 16
"""Where vLLM (0.32, 0.33) loads by its kernel: smaller pages than this, and so many of them at least."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One size of job."""

    page_bytes: int
    blocks: int
    layers: int

    @property
    def bytes(self) -> int:
        """Return the bytes that the job moves."""
        return self.page_bytes * self.blocks * self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One contestant's median time for one cell."""

    direction: str
    page_kib: int
    blocks: int
    layers: int
    contestant: str
    seconds: float
    transfers: int
    rounds: int
    is_checked: bool
    """Whether every byte was compared; those of large jobs are not."""

    @property
    def gb_per_s(self) -> float:
        """Return the bytes moved in a second."""
        return self.page_kib * KIB * self.blocks * self.layers / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class Verdict:
    """One aim in one cell: the value, and whether it is reached."""

    aim: str
    direction: str
    page_kib: int
    blocks: int
    value: float
    is_reached: bool


def cells(*, is_dry: bool) -> Iterator[Cell]:
    """Yield the plan: layers apart below 2 MiB, and all layers of a block as one page there."""
    pages = (8, 32) if is_dry else (8, 16, 32, 64, 128, 256, 512, 2048)
    counts = (1, 4) if is_dry else (1, 4, 16, 64, 256, 1024, 4096)
    for page_kib, blocks in itertools.product(pages, counts):
        cell = Cell(page_kib * KIB, blocks, 1 if page_kib >= 2048 else 8)
        if cell.bytes <= MOST_BYTES:
            yield cell


def stock_of(row: dict[str, CellResult]) -> CellResult:
    """Return what stock vLLM does with a job of this size."""
    batch = row["batch" if "batch" in row else "page by page"]
    has_kernel = (
        batch.direction == "load"
        and batch.page_kib < STOCK_KERNEL_KIB
        and batch.blocks * batch.layers >= STOCK_KERNEL_PAGES
    )
    return row["kernel over the bus"] if has_kernel else batch


def verdicts(results: list[CellResult], ceilings: dict[str, float]) -> list[Verdict]:
    """Return each aim where it applies, the missed ones first."""
    rows: dict[tuple[str, int, int], dict[str, CellResult]] = {}
    for one in results:
        rows.setdefault((one.direction, one.page_kib, one.blocks), {})[one.contestant] = one
    found: list[Verdict] = []
    for place, row in rows.items():
        ours, page = row["ours, auto"], row["page by page"]
        faster = stock_of(row).seconds / ours.seconds
        # Times scatter by some per cent.
        found.append(Verdict("times as fast as stock (aim 1)", *place, faster, faster >= 0.97))
        if ours.page_kib == 32 and ours.blocks >= 64:
            fewer = page.transfers / max(ours.transfers, 1)
            speed = page.seconds / ours.seconds
            found.append(
                Verdict(f"times fewer transfers (aim {AIM_TRANSFERS})", *place, fewer, fewer >= AIM_TRANSFERS)
            )
            found.append(
                Verdict(
                    f"times as fast as page by page (aim {AIM_SPEED:g})", *place, speed, speed >= AIM_SPEED
                )
            )
        if ours.blocks >= 64:
            share = ours.gb_per_s / ceilings[ours.direction]
            found.append(
                Verdict(f"of the pinned ceiling (aim {AIM_CEILING})", *place, share, share >= AIM_CEILING)
            )
    return sorted(found, key=lambda one: one.is_reached)
