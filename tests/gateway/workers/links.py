"""Pairs of links, for tests of what workers and their parent tell each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from autellix_backend.gateway.workers.hub import Hub
from autellix_backend.gateway.workers.limits import LimitKeeper
from autellix_backend.gateway.workers.link import Link


@asynccontextmanager
async def link_pair() -> AsyncIterator[tuple[Link, Link]]:
    """Open both ends of a connection, and serve them."""
    left, right = (Link(end) for end in socket.socketpair())
    await left.open()
    await right.open()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(left.serve())
        tasks.create_task(right.serve())
        try:
            yield left, right
        finally:
            left.close()
            right.close()


@asynccontextmanager
async def workers_of(hub: Hub, *numbers: int) -> AsyncIterator[list[Link]]:
    """Connect workers of these numbers to a hub; yield their links."""
    links: list[Link] = []
    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            ours, theirs = (Link(end) for end in socket.socketpair())
            await ours.open()
            await theirs.open()
            tasks.create_task(hub.serve(number, ours))
            tasks.create_task(theirs.serve())
            links.append(theirs)
        # Every worker is known to the hub.
        await asyncio.sleep(0)
        try:
            yield links
        finally:
            for link in links:
                link.close()


def make_hub(workers: int, answer_s: float = 60.0) -> Hub:
    """Return a hub whose workers have time to answer, as tests wait for nothing."""
    return Hub(workers, LimitKeeper(epoch_s=0.0, clock=lambda: 0.0), answer_s=answer_s)
