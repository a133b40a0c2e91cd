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
    the map loses nothing to the others.
    """

    def __init__(self, *, ttl_s: float, max_entries: int) -> None:
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        # Each in the order of their last use, so that the oldest leave from one end. No scope is empty.
        self._scopes: dict[str, OrderedDict[K, tuple[V, float]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

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
        return (value for entries in self._scopes.values() for value, _ in entries.values())

    def use(self, scope: str, key: K, now: float) -> V:
        """Return the value of a key that is present, and count this as a use."""
        value, _ = self._scopes[scope][key]
        self.put(scope, key, value, now)
        return value

    def put(self, scope: str, key: K, value: V, now: float) -> None:
        """Set a value; a full map drops an entry."""
        entries = self._scopes.setdefault(scope, OrderedDict())
        self._size += key not in entries
        entries[key] = (value, now)
        entries.move_to_end(key)
        if self._size > self._max_entries:
            self._drop_oldest(max(self._scopes, key=lambda name: len(self._scopes[name])))

    def discard(self, scope: str, key: K) -> None:
        """Drop an entry, if it is present."""
        if self.has(scope, key):
            del self._scopes[scope][key]
            self._on_dropped(scope)

    def expire(self, now: float) -> None:
        """Drop the entries that have not been used for `ttl_s`."""
        for scope in tuple(self._scopes):
            self.expire_of(scope, now)

    def expire_of(self, scope: str, now: float) -> None:
        """Drop the entries of one scope that have not been used for `ttl_s`."""
        while (entries := self._scopes.get(scope)) and now - next(iter(entries.values()))[1] >= self._ttl_s:
            self._drop_oldest(scope)

    def _drop_oldest(self, scope: str) -> None:
        self._scopes[scope].popitem(last=False)
        self._on_dropped(scope)

    def _on_dropped(self, scope: str) -> None:
        self._size -= 1
        if not self._scopes[scope]:
            del self._scopes[scope]
