"""The garbage collector of a process that serves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from collections.abc import Iterator

import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.gateway import heap
from autellix_backend.gateway.heap import THRESHOLDS, collect_while_idle, settle_heap


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_the_objects_of_the_start_are_never_walked_again() -> None:
    old = [[number] for number in range(1000)]
    settle_heap()

    assert gc.get_freeze_count() > len(old)
    walked = {id(each) for each in gc.get_objects()}
    assert not walked & {id(each) for each in old}


def test_full_collections_are_rare() -> None:
    python = gc.get_threshold()
    settle_heap()

    assert gc.get_threshold() == THRESHOLDS
    assert math.prod(gc.get_threshold()) > 50 * math.prod(python)


@pytest.fixture
def full_collections() -> Iterator[list[None]]:
    found: list[None] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(None)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


async def test_a_full_collection_waits_until_no_call_is_open(
    full_collections: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "PERIOD_S", 0.0)
    gc.collect()
    gc.disable()
    idle_s, looks = 0.0, asyncio.Semaphore(0)

    def read_idle_s() -> float:
        looks.release()
        return idle_s

    collecting = asyncio.create_task(collect_while_idle(read_idle_s))
    try:
        async with asyncio.timeout(PATIENCE_S):
            full_collections.clear()
            for _ in range(heap.DUE):
                gc.collect(1)
            for _ in range(3):
                await looks.acquire()
            assert not full_collections
            idle_s = heap.IDLE_S
            for _ in range(3):
                await looks.acquire()
        # None is due again so soon.
        assert len(full_collections) == 1
    finally:
        gc.enable()
        collecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await collecting
