"""The plan of `gpu.py`: job sizes, jobs, results, and their comparison with the aims."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from autellix_backend.kernels.job import Direction, Job, Plane, Strategy, pairs_of

KIB = 1 << 10
MOST_BYTES = 1 << 30
"""The most bytes that one job moves: larger cells are left out."""
SLOT_BYTES = 4 << 20
AIM_TRANSFERS, AIM_SPEED, AIM_CEILING = 32, 3.0, 0.9


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


@dataclass(frozen=True, slots=True)
class CellResult:
    """One contestant's time for one cell."""

    direction: str
    page_kib: int
    blocks: int
    layers: int
    contestant: str
    seconds: float
    gb_per_s: float
    share_of_ceiling: float
    transfers: int | None


def cells(*, is_quick: bool) -> Iterator[Cell]:
    """Yield the plan: layers apart below 2 MiB, and all layers of a block as one page there."""
    pages = (8, 32, 256, 2048) if is_quick else (8, 16, 32, 64, 128, 256, 512, 2048)
    counts = (1, 64, 1024) if is_quick else (1, 4, 16, 64, 256, 1024, 4096)
    for page_kib, blocks in itertools.product(pages, counts):
        cell = Cell(page_kib * KIB, blocks, 1 if page_kib >= 2048 else 8)
        if cell.bytes <= MOST_BYTES:
            yield cell


def job_of(cell: Cell, near: int, far: int, direction: Direction, strategy: Strategy) -> Job:
    """Return the job of a cell: every second block of near memory, adjacent blocks of far memory."""
    row = 2 * cell.blocks * cell.page_bytes
    near_planes = tuple(
        Plane(near + i * row, cell.page_bytes, cell.page_bytes, 2 * cell.blocks) for i in range(cell.layers)
    )
    stride = cell.layers * cell.page_bytes
    far_planes = tuple(
        Plane(far + i * cell.page_bytes, cell.page_bytes, stride, cell.blocks) for i in range(cell.layers)
    )
    is_store = direction is Direction.STORE
    return Job(
        sources=near_planes if is_store else far_planes,
        destinations=far_planes if is_store else near_planes,
        pairs=pairs_of((2 * k, k) if is_store else (k, 2 * k) for k in range(cell.blocks)),
        direction=direction,
        strategy=strategy,
    )


def summary(results: list[CellResult]) -> list[str]:
    """Return the aims of the design beside what was measured."""
    best: dict[tuple[str, int, int], dict[str, CellResult]] = {}
    for one in results:
        best.setdefault((one.direction, one.page_kib, one.blocks), {})[one.contestant] = one
    lines = []
    for (direction, page_kib, blocks), row in best.items():
        ours, page = row["ours, auto"], row["ours, per_page"]
        rival = min((row[name] for name in ("batch", "triton") if name in row), key=lambda one: one.seconds)
        notes = [f"{rival.seconds / ours.seconds:.2f}x of {rival.contestant}"]
        if page_kib == 32 and blocks >= 64:
            fewer = (page.transfers or 0) / max(ours.transfers or 1, 1)
            notes.append(f"{fewer:.0f}x fewer transfers (aim {AIM_TRANSFERS})")
            notes.append(f"{page.seconds / ours.seconds:.1f}x of per page (aim {AIM_SPEED})")
        if blocks >= 64:
            notes.append(f"{ours.share_of_ceiling:.0%} of the ceiling (aim {AIM_CEILING:.0%})")
        lines.append(f"{direction:>5} {page_kib:>5} KiB x {blocks:<5} {'; '.join(notes)}")
    return lines
