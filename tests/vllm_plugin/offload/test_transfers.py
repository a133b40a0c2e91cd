"""Transfers end in time, done or given up; nothing of a failed copy counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.fallback import PythonSwapper
from autellix_backend.kernels.job import Direction, Job, SwapStats, pairs_of
from autellix_backend.vllm_plugin.offload.host_memory import HostMemory
from autellix_backend.vllm_plugin.offload.transfers import MAX_TRIES, Transfer, TransferQueue, TransferReport

PAGE_BYTES = 64
BLOCKS = 8


class FailingSwapper:
    """Plain Python's, of which the first tries fail: when they are given, or when they end."""

    def __init__(self) -> None:
        self._swapper = PythonSwapper()
        self.refusals = 0
        self.failures = 0
        self._failed: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swapper, name)

    def submit(self, job: Job) -> int:
        if self.refusals:
            self.refusals -= 1
            raise SwapError(Code.BUSY, "")
        handle = self._swapper.submit(job)
        if self.failures:
            self.failures -= 1
            self._failed.add(handle)
        return handle

    def poll(self, handle: int) -> SwapStats | None:
        return self._end(handle, self._swapper.poll(handle))

    def wait(self, handle: int) -> SwapStats:
        stats = self._end(handle, self._swapper.wait(handle))
        assert stats is not None
        return stats

    def _end(self, handle: int, stats: SwapStats | None) -> SwapStats | None:
        if handle in self._failed and stats is not None:
            raise SwapError(Code.DEVICE, "")
        return stats


@pytest.fixture
def memories() -> Iterator[tuple[HostMemory, HostMemory]]:
    """Two pieces of memory with two layers."""
    pair = (HostMemory([PAGE_BYTES] * 2, BLOCKS), HostMemory([PAGE_BYTES] * 2, BLOCKS))
    yield pair
    for memory in pair:
        memory.close()


@pytest.fixture
def swapper() -> Iterator[FailingSwapper]:
    """One that fails on request."""
    one = FailingSwapper()
    yield one
    one.close()


def job_of(memories: tuple[HostMemory, HostMemory], blocks: int = 3) -> Job:
    """A load of the first blocks of both layers."""
    near, far = memories
    return Job(
        sources=tuple(far.plane(layer, PAGE_BYTES) for layer in range(2)),
        destinations=tuple(near.plane(layer, PAGE_BYTES) for layer in range(2)),
        pairs=pairs_of((block, BLOCKS - 1 - block) for block in range(blocks)),
        direction=Direction.LOAD,
    )


def ended_after_wait(queue: TransferQueue, number: int) -> list[Transfer]:
    """Wait for a transfer, and take what ended."""
    queue.wait([number])
    return queue.take_ended()


def test_a_transfer_is_done_and_counted(memories: Any, swapper: FailingSwapper) -> None:
    """Bytes, pages and copies of all its jobs; its price is known to the scheduler."""
    queue = TransferQueue(swapper)
    queue.submit(7, Direction.LOAD, [job_of(memories), job_of(memories, 2)])
    (ended,) = ended_after_wait(queue, 7)
    moved = (3 + 2) * 2 * PAGE_BYTES
    assert (ended.number, ended.is_done, ended.bytes) == (7, True, moved)
    report = queue.take_report()
    assert report.counts["jobs", "load"] == 1
    assert report.counts["pages", "load"] == 10
    assert report.counts["bytes", "load"] == moved
    assert report.loads == [(moved, ended.seconds)]
    assert queue.take_ended() == []
    assert queue.take_report() == TransferReport()


@pytest.mark.parametrize("kind", ["refusals", "failures"])
def test_a_failed_copy_is_tried_again(memories: Any, swapper: FailingSwapper, kind: str) -> None:
    """One that fails less than MAX_TRIES times is done in the end."""
    setattr(swapper, kind, MAX_TRIES - 1)
    queue = TransferQueue(swapper)
    queue.submit(1, Direction.LOAD, [job_of(memories)])
    (ended,) = ended_after_wait(queue, 1)
    assert ended.is_done
    assert queue.take_report().counts["retries", "load"] == MAX_TRIES - 1


@pytest.mark.parametrize("kind", ["refusals", "failures"])
def test_a_copy_that_keeps_failing_is_given_up(memories: Any, swapper: FailingSwapper, kind: str) -> None:
    """It ends all the same, as not done, and gives no price."""
    setattr(swapper, kind, MAX_TRIES)
    queue = TransferQueue(swapper)
    queue.submit(1, Direction.LOAD, [job_of(memories)])
    (ended,) = ended_after_wait(queue, 1)
    assert not ended.is_done
    report = queue.take_report()
    assert report.counts["failures", "load"] == 1
    assert report.loads == []


def test_a_transfer_of_nothing_ends(swapper: FailingSwapper) -> None:
    """One without jobs is done at once."""
    queue = TransferQueue(swapper)
    queue.submit(1, Direction.STORE, [])
    (ended,) = queue.take_ended()
    assert (ended.is_done, ended.bytes) == (True, 0)


def test_waiting_for_an_unknown_transfer_returns(swapper: FailingSwapper) -> None:
    """vLLM waits for transfers that may have ended before."""
    TransferQueue(swapper).wait([5])


def test_reports_add_up() -> None:
    """Those of several workers become one."""
    report = TransferReport(lost_chunks={1})
    report.counts["bytes", "load"] += 5
    other = TransferReport(loads=[(5, 0.1)], lost_chunks={2})
    other.counts["bytes", "load"] += 7
    report.add(other)
    assert report.counts == {("bytes", "load"): 12}
    assert (report.loads, report.lost_chunks) == ([(5, 0.1)], {1, 2})


def test_pages_of_an_odd_size_are_refused() -> None:
    """The kernels move words."""
    with pytest.raises(ValueError, match="multiple of 8"):
        HostMemory([60], 4)
