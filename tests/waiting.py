"""Waits for conditions; the limit matters only to a failing test."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""Much more than a loaded machine needs, and less than pytest gives a test."""


async def until(condition: Callable[[], bool], look_period_s: float = 0.005) -> None:
    """Wait for a condition without blocking the event loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint(condition)
        await asyncio.sleep(look_period_s)


def wait_until(condition: Callable[[], object], look_period_s: float = 0.005) -> None:
    """Wait for a condition that another thread or process makes true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint(condition)
        time.sleep(look_period_s)


def complaint(condition: Callable[[], object]) -> str:
    """Return what was awaited: the source of the condition."""
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    return f"within {PATIENCE_S:.0f} s this did not come true: {source}"
