"""The scenes of a drill by name, in their order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tests.deploy.drill import failures
from tests.deploy.drill.cluster import Cluster
from tests.deploy.drill.contract import client

logger = logging.getLogger(__name__)


def start(cluster: Cluster) -> None:
    """Start all pods."""
    cluster.start()


def _scene(play: Callable[[Cluster], Awaitable[None]]) -> Callable[[Cluster], None]:
    async def run(cluster: Cluster) -> None:
        async with client() as session:
            await cluster.is_well(session)
        await play(cluster)

    return lambda cluster: asyncio.run(run(cluster))


SCENES: Mapping[str, Callable[[Cluster], None]] = {
    "start": start,
    "calls": _scene(failures.make_calls),
    "commands": _scene(failures.use_commands),
    "gateway": _scene(failures.kill_gateway),
    "redis": _scene(failures.kill_redis),
    "engine": _scene(failures.kill_engine),
    "replace": _scene(failures.replace_pods),
}


def play(cluster: Cluster, names: Iterable[str]) -> None:
    """Play scenes; one that breaks down is a row of the table, and without a start there are no others."""
    for name in names:
        begun_s = time.monotonic()
        with cluster.table.noting(f"the scene {name!r} was played to its end"):
            SCENES[name](cluster)
        if name == "start" and not cluster.table.rows[-1]["holds"]:
            return
        logger.info("scene %s: over after %.0f s", name, time.monotonic() - begun_s)
