"""Names recorded calls after the agents that made them, and draws their DAG."""

from __future__ import annotations

from collections import Counter
from typing import Any

from autellix.testing import RecordedCall


def caller(body: Any) -> str:
    """Return the name of the agent that made a call: the first word of the first message."""
    return str(body["messages"][0]["content"]).split()[0].strip(":,.")


def labelled(calls: list[RecordedCall]) -> dict[str, RecordedCall]:
    """Name each call after its agent and count: a1, a2, b1."""
    counts: Counter[str] = Counter()
    labels = {}
    for call in calls:
        name = caller(call.body)
        counts[name] += 1
        labels[f"{name}{counts[name]}"] = call
    return labels


def dag(calls: list[RecordedCall]) -> dict[str, tuple[str, ...] | None]:
    """Return the parents of each call, by label."""
    labels = labelled(calls)
    names = {call.call_id: label for label, call in labels.items()}
    return {
        label: None
        if call.parents is None
        else tuple(sorted(names.get(parent, parent) for parent in call.parents))
        for label, call in labels.items()
    }
