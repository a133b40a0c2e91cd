"""Whether a cluster answers as the backend on one machine."""

from __future__ import annotations

from tests.deploy.drill.contract import UNKNOWN, Told, differences
from tests.deploy.drill.table import Table

LEAST_SHORT_FIRST = 0.9
"""Of pairs, under policies that know sizes from the first call on."""
TOLERANCE = 0.25
"""Between the shares of one machine and the cluster, whose arrivals no two runs repeat."""


def compare(table: Table, one: Told | None, cluster: Told, policy: str) -> None:
    """Add what a cluster said to the table, beside what one machine said."""
    for number, order in enumerate(cluster.orders):
        beside = "" if one is None else f" (one machine: {one.orders[number]})"
        holds = order.short_first >= LEAST_SHORT_FIRST
        if one is not None:
            holds = holds or abs(order.short_first - one.orders[number].short_first) <= TOLERANCE
        table.note(f"order, round {number + 1}", holds, f"{order}{beside}")
    table.note("receipts have the engines' own numbers", cluster.is_measured)
    table.note("engines have the policy", cluster.policies == {policy}, sorted(cluster.policies - {UNKNOWN}))
    table.note("readyz", cluster.readiness == "ready", cluster.readiness)
    table.note(
        "ps shows waiting and running", {"waiting", "running"} <= cluster.states, sorted(cluster.states)
    )
    table.note("why explains a waiting call by its place", bool(cluster.why), cluster.why)
    if one is None:
        return
    table.note("tokens equal one machine's", cluster.tokens == one.tokens, cluster.tokens)
    table.note("answers equal one machine's", cluster.answers == one.answers)
    for name, form in cluster.shapes.items():
        found = differences(one.shapes[name], form)
        table.note(f"{name} has the form of one machine's", not found, "; ".join(found))
