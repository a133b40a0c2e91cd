"""Waits for conditions; the limit matters only to a failing test."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0
"""Much more than a loaded machine needs, and less than pytest gives a test."""


async def until(
    condition: Callable[[], object | Awaitable[object]],
    look_period_s: float = 0.005,
    patience_s: float = PATIENCE_S,
) -> None:
    """Wait for a condition, which may be asked with `await`, without blocking the event loop."""
    deadline = time.monotonic() + patience_s
    while True:
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        assert time.monotonic() < deadline, complaint(condition, patience_s)
        await asyncio.sleep(look_period_s)


async def until_set(event: asyncio.Event, *setters: asyncio.Task[Any]) -> None:
    """Wait for an event; a task that should set it and ends before it is asked for its error."""
    await until(lambda: event.is_set() or any(task.done() for task in setters))
    for task in setters:
        if task.done():
            task.result()
    assert event.is_set(), f"{[task.get_name() for task in setters]} ended, and did not set {event}"


def wait_until(condition: Callable[[], object], look_period_s: float = 0.005) -> None:
    """Wait for a condition that another thread or process makes true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint(condition, PATIENCE_S)
        time.sleep(look_period_s)


def complaint(condition: Callable[[], object], patience_s: float) -> str:
    """Return what was awaited: the source of the condition."""
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    return f"within {patience_s:.0f} s this did not come true: {source}"
