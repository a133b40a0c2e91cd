"""Every swapper moves exactly the pages of its table, whatever the layout and the strategy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.kernels.jobs import Case, Memory, cases, copy, copy_and_compare, geometry, scattered

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import Direction, Job, Plane, Strategy, pairs_of

EXAMPLES = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@EXAMPLES
@given(case=cases())
def test_copies_byte_for_byte(swapper: Swapper, case: Case) -> None:
    """The destination holds what a plain model says, also around the planes; the source is untouched."""
    stats = copy_and_compare(swapper, case)
    assert stats.pages == len(case.pairs) * len(case.sources.offsets)
    assert stats.bytes == len(case.pairs) * sum(case.sources.block_bytes)


@pytest.mark.parametrize("direction", Direction)
def test_staging_merges_pages_adjacent_in_far_memory(native: Swapper, direction: Direction) -> None:
    """16 scattered blocks of four layers are 64 pages, one transfer if far memory keeps layers together."""
    transfers = {
        (strategy, is_far_together): copy(
            native,
            Memory(scattered(is_far_together=is_far_together, strategy=strategy, direction=direction)).job(),
        ).transfers
        for strategy in (Strategy.PER_PAGE, Strategy.COALESCED, Strategy.STAGED)
        for is_far_together in (False, True)
    }
    assert transfers == {
        (Strategy.PER_PAGE, False): 64,
        (Strategy.PER_PAGE, True): 64,
        (Strategy.COALESCED, False): 64,
        (Strategy.COALESCED, True): 64,
        (Strategy.STAGED, False): 4,
        (Strategy.STAGED, True): 1,
    }


def test_coalescing_merges_neighbours_in_both_memories(native: Swapper) -> None:
    """Whole blocks whose layers are together on both sides become one copy, given in any order."""
    side = geometry([64] * 4, 8, is_together=True, padding=0, order=range(4))
    pairs = ((3, 4), (2, 3), (4, 5))
    case = Case(
        sources=side, destinations=side, pairs=pairs, direction=Direction.STORE, strategy=Strategy.COALESCED
    )
    assert copy(native, Memory(case).job()).transfers == 1


def test_the_fallback_reports_its_own_copies(fallback: Swapper) -> None:
    """It copies page by page, whatever the strategy, and counts those copies."""
    case = scattered(is_far_together=True, strategy=Strategy.STAGED, direction=Direction.STORE)
    stats = copy_and_compare(fallback, case)
    assert (stats.strategy, stats.transfers) == (Strategy.PER_PAGE, 64)


def test_numpy_tables_work(swapper: Swapper) -> None:
    """A table may be an array of numpy, also one that must not be written."""
    case = scattered(is_far_together=True, strategy=Strategy.STAGED, direction=Direction.STORE)
    memory = Memory(case)
    table = np.array(case.pairs, dtype=np.int64)
    table.setflags(write=False)
    expected = memory.expected()
    copy(swapper, memory.job(pairs=table))
    assert memory.destination.raw == expected


def test_jobs_run_in_the_order_of_their_submission(swapper: Swapper) -> None:
    """A chain of jobs, each reading what the one before wrote, arrives whole."""
    blocks = 40
    memory = ctypes.create_string_buffer(b"\x07" * 64 + bytes(64 * blocks))
    base = ctypes.addressof(memory)
    handles = [
        swapper.submit(
            Job(
                sources=(Plane(base + 64 * k, 64, 64, 1),),
                destinations=(Plane(base + 64 * (k + 1), 64, 64, 1),),
                pairs=pairs_of([(0, 0)]),
                direction=Direction.STORE,
            )
        )
        for k in range(blocks)
    ]
    assert [swapper.wait(handle).bytes for handle in handles] == [64] * blocks
    assert memory.raw[:-1] == b"\x07" * 64 * (blocks + 1)


def test_poll_reports_an_end_once(swapper: Swapper) -> None:
    """A poll in time says that the job is done, and how; after that the handle is gone."""
    memory = Memory(scattered(is_far_together=True, strategy=Strategy.AUTO, direction=Direction.LOAD))
    expected = memory.expected()
    handle = swapper.submit(memory.job())
    while (stats := swapper.poll(handle)) is None:
        pass
    assert memory.destination.raw == expected
    assert stats.pages == 64
    for again in (swapper.poll, swapper.wait):
        with pytest.raises(SwapError) as raised:
            again(handle)
        assert (raised.value.code, raised.value.field) == (Code.HANDLE, "handle")
