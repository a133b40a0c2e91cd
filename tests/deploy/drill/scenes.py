"""The scenes of a drill by name, in their order, and the cluster that they share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tests.deploy.drill import failures, secrets
from tests.deploy.drill.cluster import START_S, Cluster
from tests.deploy.drill.compare import compare
from tests.deploy.drill.contract import Backend, Told, are_all_well, client, examine, until
from tests.drills.processes import Server

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Stage:
    """What the scenes share."""

    cluster: Cluster
    one_machine: Server
    policy: str
    reference: Told | None = None
    """What the backend on one machine said."""


def reference(stage: Stage) -> None:
    """Start the backend on one machine, put the contract to it, and end it."""
    begun_s = time.monotonic()
    stage.one_machine.start()
    logger.info("one machine: ready after %.0f s", time.monotonic() - begun_s)
    try:
        backend = Backend(
            name="one machine", gateways=[stage.one_machine], engines=stage.cluster.backend.engines
        )
        stage.reference = asyncio.run(_examine(backend, "local"))
        logger.info("one machine: %s", "; ".join(map(str, stage.reference.orders)))
    finally:
        stage.one_machine.stop()


def start(stage: Stage) -> None:
    """Start all pods."""
    begun_s = time.monotonic()
    stage.cluster.start()
    logger.info("all pods are ready after %.0f s", time.monotonic() - begun_s)


def contract(stage: Stage) -> None:
    """Put the contract to the cluster, and compare."""
    told = asyncio.run(_examine(stage.cluster.backend, "up"))
    compare(stage.cluster.table, stage.reference, told, stage.policy)


async def _examine(backend: Backend, expected: str) -> Told:
    async with client() as session:
        await until("all is well", lambda: are_all_well(session, backend, expected), START_S)
    return await examine(backend, "order")


def _failure(scene: failures.Scene) -> Callable[[Stage], None]:
    async def run(cluster: Cluster) -> None:
        async with client() as session:
            await cluster.is_well(session)
        await scene(cluster)

    return lambda stage: asyncio.run(run(stage.cluster))


SCENES: Mapping[str, Callable[[Stage], None]] = {
    "reference": reference,
    "start": start,
    "contract": contract,
    "commands": _failure(failures.use_commands),
    "gateway": _failure(failures.kill_gateway),
    "redis": _failure(failures.kill_redis),
    "engine": _failure(failures.kill_engine),
    "replace": _failure(failures.replace_pods),
    "secrets": _failure(secrets.change_secrets),
}


def play(stage: Stage, names: Iterable[str]) -> None:
    """Play scenes; one that breaks down is a row of the table, and without a start there are no others."""
    for name in names:
        begun_s = time.monotonic()
        with stage.cluster.table.noting(f"the scene {name!r} was played to its end"):
            SCENES[name](stage)
        if name == "start" and not stage.cluster.table.rows[-1]["holds"]:
            return
        logger.info("scene %s: over after %.0f s", name, time.monotonic() - begun_s)
