"""Moments by name; those that have passed are found without a walk over the others."""

from __future__ import annotations

from heapq import heappop, heappush


class Deadlines:
    """A moment for each name; each may be moved at any time."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        # Each name has an entry at its moment or before; entries of moved and removed names are dropped late.
        self._heap: list[tuple[float, str]] = []
        self._entries: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, name: object) -> bool:
        return name in self._moments

    def set(self, name: str, moment: float) -> None:
        """Set or move a name's moment."""
        self._moments[name] = moment
        entry = self._entries.get(name)
        if entry is None or moment < entry:
            self._push(name, moment)

    def remove(self, name: str) -> bool:
        """Remove a name; return whether it was there."""
        return self._moments.pop(name, None) is not None

    def is_due(self, name: str, now: float) -> bool:
        """Return whether a name is there and its moment not after `now`."""
        moment = self._moments.get(name)
        return moment is not None and moment <= now

    def due(self, now: float) -> list[str]:
        """Return the names whose moments are not after `now`, the earliest first; they stay until removed."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            entry, name = heappop(self._heap)
            if self._entries.get(name) != entry:
                continue
            del self._entries[name]
            moment = self._moments.get(name)
            if moment is None:
                continue
            if moment <= now:
                found.append(name)
            else:
                self._push(name, moment)
        for name in found:
            self._push(name, self._moments[name])
        return found

    def _push(self, name: str, moment: float) -> None:
        self._entries[name] = moment
        heappush(self._heap, (moment, name))
