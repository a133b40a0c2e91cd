"""Requests whose clients may disconnect before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def disconnected(receive: Receive) -> None:
    """Return once the client of a request has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run work until it ends or the client disconnects, and cancel it then.

    Raises:
        CancelledError: if this is cancelled before the work has ended; the work is cancelled too.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(receive))
    is_cancelled = False
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        is_cancelled = True
    gone.cancel()
    if task.done():
        task.result()
        return
    task.cancel()
    await asyncio.wait((task,))
    if is_cancelled:
        raise asyncio.CancelledError
