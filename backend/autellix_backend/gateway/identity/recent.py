"""A bounded map that drops the least recently used entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentMap(Generic[Key, Value]):
    """Values by key; an entry leaves `ttl_s` after its last use, or when the map is full."""

    def __init__(self, *, ttl_s: float, max_entries: int) -> None:
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        # In the order of their last use, so that the oldest leave from one end.
        self._entries: OrderedDict[Key, tuple[Value, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def use(self, key: Key, now: float) -> Value:
        """Return the value of a key that is present, and count this as a use."""
        value, _ = self._entries[key]
        self.put(key, value, now)
        return value

    def put(self, key: Key, value: Value, now: float) -> None:
        """Set a value; a full map drops its oldest entry."""
        self._entries[key] = (value, now)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def discard(self, key: Key) -> None:
        """Drop an entry, if it is present."""
        self._entries.pop(key, None)

    def expire(self, now: float) -> None:
        """Drop the entries that have not been used for `ttl_s`."""
        while self._entries:
            key, (_, used_at) = next(iter(self._entries.items()))
            if now - used_at < self._ttl_s:
                return
            del self._entries[key]
