"""The garbage collector of a process that serves calls: a full collection stops all of them.

Reference counts free nearly everything; the collector looks for cycles only. By default it looks after every
700 objects that outlive their making, which with many open calls is a quarter of the processor time, and a
full collection walks the 90,000 objects of the start each time, for 30 to 60 ms.
"""

from __future__ import annotations

import gc

THRESHOLDS = (2_000, 10, 50)
"""New objects before a collection of the young ones, which takes about a millisecond; of these collections
before one of the middle generation; and of those before a full one."""


def settle_heap() -> None:
    """Exclude the objects of the start from later collections, and make few full ones."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
