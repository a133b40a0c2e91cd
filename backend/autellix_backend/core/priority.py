"""The priority of a program inside its tenant: a bounded head start in the boosted order.

A head start moves the time at which a program counts as having arrived. So it is never absolute, and no
program starves: one of `batch` is passed only by those that arrive within a day after it. Only programs of
one tenant are compared by it, for the shares of tenants decide before.

Under admission, programs of `batch` also leave a part of KV memory to the others, and make room for them.
"""

from __future__ import annotations

from enum import StrEnum


class Priority(StrEnum):
    """How urgent a program is to its tenant."""

    INTERACTIVE = "interactive"
    """Somebody waits for it."""
    DEFAULT = "default"
    BATCH = "batch"
    """Fills what the others leave free."""

    @property
    def head_start_s(self) -> float:
        """The time (s) by which it counts as having arrived earlier; below zero, later."""
        return _HEAD_STARTS_S[self]


_HEAD_STARTS_S = {Priority.INTERACTIVE: 600.0, Priority.DEFAULT: 0.0, Priority.BATCH: -86400.0}
