"""Transfers under way: swap jobs by the engine's numbers, retried where they fail, and counted.

vLLM accepts no failed transfer: it asserts success. So every transfer ends here as done, or as given up after
MAX_TRIES; what a given-up load was to bring must be computed again. Nothing here knows vLLM.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.errors import SwapError
from autellix_backend.kernels.job import Direction, Job, SwapStats

MAX_TRIES = 3

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TransferReport:
    """What was moved, and what failed; plain data, since it travels from a worker to the scheduler."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Sums by (what, direction): `jobs`, `transfers`, `pages`, `bytes`, `seconds`, `retries`, `failures`."""
    loads: list[tuple[int, float]] = field(default_factory=list)
    """Bytes and seconds of each load that was done."""
    lost_chunks: set[int] = field(default_factory=set)
    """Chunks of host memory whose store was given up."""

    def add(self, other: TransferReport) -> None:
        """Add another report, of another worker or a later time."""
        self.counts.update(other.counts)
        self.loads += other.loads
        self.lost_chunks |= other.lost_chunks


@dataclass(slots=True)
class _Part:
    job: Job
    tries: int = 0
    handle: int | None = None


@dataclass(slots=True)
class Transfer:
    """A transfer under way, or over."""

    number: int
    direction: Direction
    parts: list[_Part]
    """Parts that are under way."""
    bytes: int = 0
    seconds: float = 0.0
    is_done: bool = True
    """False: given up. What it was to write is lost."""

    @property
    def name(self) -> str:
        """The name of its direction."""
        return self.direction.name.lower()


class TransferQueue:
    """The transfers of one worker. One thread uses it; the swapper works beside it."""

    def __init__(self, swapper: Swapper) -> None:
        self._swapper = swapper
        self._open: dict[int, Transfer] = {}
        self._ended: list[Transfer] = []
        self._report = TransferReport()

    def submit(self, number: int, direction: Direction, jobs: Sequence[Job]) -> None:
        """Start a transfer of one or more jobs of a direction."""
        transfer = self._open[number] = Transfer(number, direction, [_Part(job) for job in jobs])
        for part in transfer.parts:
            self._start(transfer, part)

    def take_ended(self) -> list[Transfer]:
        """Return the transfers that are over since the last time, without waiting."""
        for number in list(self._open):
            self._advance(number, is_waiting=False)
        ended, self._ended = self._ended, []
        return ended

    def wait(self, numbers: Iterable[int]) -> None:
        """Wait until those of these transfers that are under way are over; take_ended() returns them."""
        for number in numbers:
            while number in self._open:
                self._advance(number, is_waiting=True)

    def wait_for_all(self) -> None:
        """Wait until nothing is under way."""
        self.wait(list(self._open))

    def take_report(self) -> TransferReport:
        """Return what was counted since the last time."""
        report, self._report = self._report, TransferReport()
        return report

    def _advance(self, number: int, *, is_waiting: bool) -> None:
        transfer = self._open[number]
        for part in list(transfer.parts):
            self._look_at(transfer, part, is_waiting=is_waiting)
        if not transfer.parts:
            del self._open[number]
            self._end(transfer)

    def _look_at(self, transfer: Transfer, part: _Part, *, is_waiting: bool) -> None:
        try:
            stats = self._result(part, is_waiting=is_waiting)
        except SwapError as error:
            part.handle = None
            logger.warning("A %s of KV blocks failed: %s", transfer.name, error)
            stats = None
        if stats is not None:
            self._count_copies(transfer, stats)
            transfer.parts.remove(part)
        elif part.handle is None and part.tries < MAX_TRIES:
            self._report.counts["retries", transfer.name] += 1
            self._start(transfer, part)
        elif part.handle is None:
            transfer.is_done = False
            transfer.parts.remove(part)

    def _result(self, part: _Part, *, is_waiting: bool) -> SwapStats | None:
        if part.handle is None:
            return None
        return self._swapper.wait(part.handle) if is_waiting else self._swapper.poll(part.handle)

    def _start(self, transfer: Transfer, part: _Part) -> None:
        part.tries += 1
        try:
            part.handle = self._swapper.submit(part.job)
        except SwapError as error:
            logger.warning("A %s of KV blocks was refused: %s", transfer.name, error)

    def _count_copies(self, transfer: Transfer, stats: SwapStats) -> None:
        name, counts = transfer.name, self._report.counts
        transfer.bytes += stats.bytes
        transfer.seconds += stats.seconds
        counts["transfers", name] += stats.transfers
        counts["pages", name] += stats.pages
        counts["bytes", name] += stats.bytes
        # A counter of numbers: typeshed has it count whole ones.
        counts["seconds", name] += stats.seconds  # type: ignore[assignment]

    def _end(self, transfer: Transfer) -> None:
        self._report.counts["jobs" if transfer.is_done else "failures", transfer.name] += 1
        if transfer.is_done and transfer.direction is Direction.LOAD:
            self._report.loads.append((transfer.bytes, transfer.seconds))
        self._ended.append(transfer)
