"""Pauses in long work on the event loop, so that others' calls advance."""

from __future__ import annotations

import asyncio
import time

STEP_S = 0.00025
"""Work that needs no pause."""
MAX_PAUSE_S = 0.05
"""A step is far shorter, unless the machine is busy or the work was waiting."""


class Pauses:
    """Pauses of one piece of work, in proportion to its steps."""

    def __init__(self, ratio: float = 1.0) -> None:
        """Begin the first step; each pause takes `ratio` times its step, up to a bound."""
        self._ratio = ratio
        self._began_s = time.perf_counter()

    async def pause(self) -> None:
        """Let others' calls advance in proportion to the last step, unless it was short."""
        step_s = time.perf_counter() - self._began_s
        if step_s < STEP_S:
            return
        await asyncio.sleep(min(MAX_PAUSE_S, self._ratio * step_s))
        self._began_s = time.perf_counter()
