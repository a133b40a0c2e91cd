"""Which engines share models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def groups_of(lists: Mapping[str, Iterable[str]]) -> list[frozenset[str]]:
    """Return the engines that share models, directly or through others, from the lists by engine.

    An engine without a list may serve anything: it belongs to the first group.
    """
    groups: list[tuple[set[str], set[str]]] = []
    unlisted = [engine for engine, models in lists.items() if not models]
    for engine, models in lists.items():
        if not models:
            continue
        engines, shared = {engine}, set(models)
        for group in [each for each in groups if each[1] & shared]:
            groups.remove(group)
            engines |= group[0]
            shared |= group[1]
        groups.append((engines, shared))
    order = {engine: place for place, engine in enumerate(lists)}
    found = sorted((engines for engines, _ in groups), key=lambda each: min(order[engine] for engine in each))
    if unlisted:
        found = [(found[0] if found else set()).union(unlisted), *found[1:]]
    return [frozenset(each) for each in found]
