"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from autellix_backend.gateway.heap import THRESHOLDS, settle_heap


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
    assert gc.get_threshold() > python
