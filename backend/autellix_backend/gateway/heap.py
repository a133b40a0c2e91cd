"""The garbage collector of a process that serves calls: each of its collections stops all of them.

Reference counts free nearly everything; the collector looks for cycles only. By default it looks after every
700 objects that outlive their making, which with many open calls is a quarter of the processor time. A full
collection walks the 90,000 objects of the start each time, for 30 to 60 ms, and as long again for those of a
full history.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

THRESHOLDS = (500, 4, 2_500)
"""New objects before a collection of the young ones, which takes half a millisecond; of these collections
before one of the middle generation, which takes two; and of those before a full one, which then comes after
five million objects that stayed."""
DUE = 100
"""Collections of the middle generation after which a full one is made as soon as nobody waits for it."""
IDLE_S = 1.0
PERIOD_S = 1.0


def settle_heap() -> None:
    """Exclude the objects of the start from later collections, and make few full ones."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


async def collect_while_idle(idle_s: Callable[[], float]) -> None:
    """Make the full collections while no call is open, until cancelled.

    Args:
        idle_s: Returns for how long no call has been open, in seconds.
    """
    while True:
        await asyncio.sleep(PERIOD_S)
        if idle_s() >= IDLE_S and gc.get_count()[2] >= DUE:
            gc.collect()
