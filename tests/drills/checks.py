"""The invariants after every drill: service equals the receipts, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.drills.cluster import Cluster
from tests.drills.control import Operator, until
from tests.drills.load import Fate, Load

from autellix_backend.stores.redis_scripts import MAX_CONNECTIONS

TOLERANCE = 0.05


async def service_is_kept(cluster: Cluster, load: Load) -> dict[str, float]:
    """Check each resident's attained service in the table against the receipts and the engines' accounts.

    What gateways did without the table arrives there with their next rounds.

    Returns:
        By resident the service in the table as a share of what the receipts say.
    """
    receipts_s = {name: load.ledger.service_s[name] for name in load.residents}
    table_s: dict[str, float] = {}

    async def is_kept() -> bool:
        table_s.update({name: cluster.service_s(name) for name in load.residents})
        return not _differing(table_s, receipts_s)

    def told() -> object:
        return [(name, table_s[name], receipts_s[name]) for name in _differing(table_s, receipts_s)]

    await until("the table has the service that the receipts tell", is_kept, told=told)
    accounts_s = cluster.engine_accounts()
    if cluster.ledgers:
        assert not _differing(table_s, {name: accounts_s[name] for name in load.residents})
    return {name: table_s[name] / receipts_s[name] for name in load.residents}


def _differing(found: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    return [name for name, value in expected.items() if abs(found[name] - value) > TOLERANCE * value]


async def nothing_is_left(cluster: Cluster, operator: Operator) -> None:
    """Check that table, gateways and engines hold nothing of programs that have all ended."""
    held: dict[str, object] = {}

    async def is_empty() -> bool:
        held.clear()
        if keys := cluster.keys_left():
            held["table"] = sorted(keys)
        for gateway in cluster.gateways:
            metrics = await operator.metrics(gateway)
            counts = {
                name: value
                for name, value in metrics.items()
                if name.startswith("autellix_stored ") and value
            }
            engines = await operator.engines(gateway)
            calls = {
                one["name"]: one["open_calls"] for one in engines if one["open_calls"] or one["queued_calls"]
            }
            if counts or calls:
                held[gateway.name] = (counts, calls)
            tasks, sockets = await asyncio.to_thread(gateway.tasks), gateway.sockets()
            idle_tasks, idle_sockets = cluster.idle[gateway.name]
            # Connections to Redis stay open for later calls.
            if tasks > idle_tasks or sockets > idle_sockets + MAX_CONNECTIONS:
                held[f"{gateway.name}'s tasks and sockets"] = (tasks, sockets, cluster.idle[gateway.name])
        return not held

    await until("nothing is left", is_empty, told=lambda: held)
    cluster.check_table()


def every_call_was_answered_or_refused_clearly(load: Load, *, may_cut: bool = False) -> None:
    """Check that no call hung or ended without an error; a connection may break only with its gateway."""
    fates = load.ledger.fates
    never = (Fate.HUNG, Fate.UNCLEAR) if may_cut else (Fate.HUNG, Fate.UNCLEAR, Fate.CUT, Fate.REFUSED)
    assert not sum(fates[fate] for fate in never), load.ledger.reasons
