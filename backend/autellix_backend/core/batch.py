"""Batch formation (Alg. 1, lines 32-39): walk the queues and stop at the first call that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def form_batch(
    items: Iterable[Item],
    slots: int,
    *,
    capacity: float = math.inf,
    cost: Callable[[Item], float] | None = None,
) -> list[Item]:
    """Return the longest run of items, in order, that fits the slots and the capacity.

    An item that does not fit ends the batch.
    """
    batch: list[Item] = []  # Alg. 1, line 32
    room = capacity
    if slots <= 0:
        return batch
    for item in items:  # Alg. 1, line 33
        if cost is not None:
            room -= cost(item)
            if room < 0:  # Alg. 1, lines 36-37
                break
        batch.append(item)  # Alg. 1, line 35
        if len(batch) == slots:
            break
    return batch
