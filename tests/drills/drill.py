"""The course of every drill: steady load, a failure and its recovery, then checks of the accounts."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.drills import checks
from tests.drills.cluster import Cluster
from tests.drills.control import Operator, operating
from tests.drills.load import Fate, Load, working

logger = logging.getLogger(__name__)

WARM_CALLS = 60
"""Answered calls before anything dies."""


@dataclass(frozen=True, slots=True)
class Drill:
    """The cluster, load and operator of a running drill."""

    cluster: Cluster
    load: Load
    operator: Operator


@asynccontextmanager
async def drilling(
    name: str, cluster: Cluster, *, model: str = "m", may_cut: bool = False, keeps_service: bool = True
) -> AsyncIterator[Drill]:
    """Load a cluster; at the end, when all works again, check what must hold after every drill.

    `keeps_service` is False where gateways lose Redis: what they charge meanwhile stays with them.
    """
    begun_s = time.monotonic()
    cluster.is_sound = False
    async with operating() as operator, working(cluster.gateways, name=name, model=model) as load:
        await load.more(WARM_CALLS)
        yield Drill(cluster, load, operator)
        await load.rest()
        checks.every_call_was_answered_or_refused_clearly(load, may_cut=may_cut)
        shares = await checks.service_is_kept(cluster, load) if keeps_service else {}
        load.leave()
        fates = load.ledger.fates
        counts = (
            f"{fates[Fate.ANSWERED]} answered, {load.visits} visitors, others {dict(load.ledger.reasons)}"
        )
        # The figures of the page of results; `pytest --log-cli-level=INFO` shows them.
        logger.info("%s: %s; service by the receipts': %s", name, counts, sorted(shares.values()))
    async with operating() as operator:
        await checks.nothing_is_left(cluster, operator)
    cluster.is_sound = True
    logger.info("%s: over after %.1f s", name, time.monotonic() - begun_s)
