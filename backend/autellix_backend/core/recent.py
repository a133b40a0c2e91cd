"""Dicts that keep the entries used last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def latest(entries: dict[K, V], key: K, make: Callable[[], V], most: int) -> V:
    """Return the entry of a key, made if it is new, as the last one; beyond `most`, drop the first."""
    entry = entries.pop(key, None)
    if entry is None:
        entry = make()
    entries[key] = entry
    if len(entries) > most:
        del entries[next(iter(entries))]
    return entry
