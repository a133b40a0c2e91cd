"""Tasks that act once in each period."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

logger = logging.getLogger(__name__)


@asynccontextmanager
async def repeating(period_s: float, act: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Act once in each period while inside; a failed act is logged and does not end the others."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await act()
            except Exception:
                # A task's boundary: one failed round must not end the others.
                logger.exception("a task of the gateway failed")

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
