"""Maps that keep the entries used last: `latest` for one owner, `RecentMap` for several that compete."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

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


class RecentMap(Generic[K, V]):
    """Values by scope (tenant) and key; an entry leaves `ttl_s` after its last use, or when the map is full.

    A full map drops the oldest entry of the scope that has the most, so a scope with less than its share of
    the map loses nothing to the others. Entries count by their weight, by default one each.
    """

    def __init__(self, *, ttl_s: float, max_entries: int) -> None:
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        # Each in the order of their last use, so that the oldest leave from one end. No scope is empty.
        self._scopes: dict[str, OrderedDict[K, tuple[V, float, int]]] = {}
        self._weights: dict[str, int] = {}
        self._weight = 0

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))

    def count(self, scope: str) -> int:
        """Return the number of a scope's entries."""
        return len(self._scopes.get(scope, ()))

    def has(self, scope: str, key: K) -> bool:
        """Return whether a scope has a key."""
        return key in self._scopes.get(scope, ())

    def get(self, scope: str, key: K) -> V | None:
        """Return the value of a key, None if it is absent; this is no use of it."""
        return self._scopes[scope][key][0] if self.has(scope, key) else None

    def values(self) -> Iterator[V]:
        """Iterate over the values of all scopes; the map must not change meanwhile."""
        return (value for entries in self._scopes.values() for value, _, _ in entries.values())

    def use(self, scope: str, key: K, now: float) -> V:
        """Return the value of a key that is present, and count this as a use."""
        value, _, weight = self._scopes[scope][key]
        self.put(scope, key, value, now, weight)
        return value

    def put(self, scope: str, key: K, value: V, now: float, weight: int = 1) -> None:
        """Set a value; a full map drops entries until it is within its bound."""
        self.discard(scope, key)
        self._scopes.setdefault(scope, OrderedDict())[key] = (value, now, weight)
        self._add_weight(scope, weight)
        while self._weight > self._max_entries:
            self._drop_oldest(max(self._weights, key=self._weights.__getitem__))

    def discard(self, scope: str, key: K) -> None:
        """Drop an entry, if it is present."""
        if self.has(scope, key):
            self._on_dropped(scope, self._scopes[scope].pop(key))

    def expire(self, now: float) -> None:
        """Drop the entries that have not been used for `ttl_s`."""
        for scope in tuple(self._scopes):
            self.expire_of(scope, now)

    def expire_of(self, scope: str, now: float) -> None:
        """Drop the entries of one scope that have not been used for `ttl_s`."""
        while (entries := self._scopes.get(scope)) and now - next(iter(entries.values()))[1] >= self._ttl_s:
            self._drop_oldest(scope)

    def _drop_oldest(self, scope: str) -> None:
        self._on_dropped(scope, self._scopes[scope].popitem(last=False)[1])

    def _on_dropped(self, scope: str, entry: tuple[V, float, int]) -> None:
        self._add_weight(scope, -entry[2])
        if not self._scopes[scope]:
            del self._scopes[scope], self._weights[scope]

    def _add_weight(self, scope: str, weight: int) -> None:
        self._weight += weight
        self._weights[scope] = self._weights.get(scope, 0) + weight
