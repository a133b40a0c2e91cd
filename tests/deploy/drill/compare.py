"""Whether a cluster answers as the backend on one machine."""

from __future__ import annotations

import logging

from tests.deploy.drill.contract import UNKNOWN, Told, differences
from tests.deploy.drill.table import Table

logger = logging.getLogger(__name__)

TOLERANCE = 0.2
"""Between the shares of one machine and the cluster, whose arrivals no two runs repeat."""


def compare(table: Table, one: Told | None, cluster: Told, policy: str) -> None:
    """Add what a cluster said to the table, beside what one machine said."""
    table.note("receipts have the engines' own numbers", cluster.is_measured)
    table.note("engines have the policy", cluster.policies == {policy}, sorted(cluster.policies - {UNKNOWN}))
    table.note("readyz", cluster.readiness == "ready", cluster.readiness)
    table.note(
        "ps shows waiting and running", {"waiting", "running"} <= cluster.states, sorted(cluster.states)
    )
    table.note("why explains a waiting call by its place", bool(cluster.why), cluster.why)
    if one is None:
        orders = "; ".join(map(str, cluster.orders))
        logger.info("order: %s; %s; there is no other backend to compare with", orders, cluster.costs)
        return
    for number, (order, other) in enumerate(zip(cluster.orders, one.orders, strict=True), start=1):
        holds = order.short_first >= other.short_first - TOLERANCE
        table.note(f"order, round {number}, as on one machine", holds, f"{order} (one machine: {other})")
    costs = f"{cluster.costs} (one machine: {one.costs})"
    table.note("processor time of these rounds", True, costs)
    table.note("tokens equal one machine's", cluster.tokens == one.tokens, cluster.tokens)
    table.note("answers equal one machine's", cluster.answers == one.answers)
    for name, form in cluster.shapes.items():
        found = differences(one.shapes[name], form)
        table.note(f"{name} has the form of one machine's", not found, "; ".join(found))
