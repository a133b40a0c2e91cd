"""Makes ids that are unique across processes."""

from __future__ import annotations

import itertools
import os


class IdFactory:
    """A random prefix per process and a counter."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw a new prefix; a forked child must not continue its parent's numbers."""
        self.prefix = os.urandom(8).hex()
        """Different in each process."""
        self._numbers = itertools.count(1)

    def make(self, kind: str) -> str:
        """Return the next id, such as `call-<prefix>-<number>`."""
        return f"{kind}-{self.prefix}-{next(self._numbers)}"


ids = IdFactory()
