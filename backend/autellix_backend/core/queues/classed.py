"""The order of programs by key, where what a class of work is worth may change at any time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace, merge
from operator import itemgetter
from typing import Generic, TypeVar

from autellix_backend.core.place import NO_BOOSTS, Boosts, Place, WorkClass

T = TypeVar("T")

Keyed = tuple[float, int, T]
"""An item with its present key and its number."""

_item = itemgetter(2)


class ClassedOrder(Generic[T]):
    """Items by (key, number); each class has a sorted list, and the heads of the lists are compared.

    Within a list, bases are compared, so two programs of one class whose keys differ by less than their last
    digit keep the order of their bases.
    """

    def __init__(self, boosts: Boosts = NO_BOOSTS) -> None:
        self._boosts = boosts
        self._lists: dict[WorkClass | None, list[Keyed[T]]] = {}
        """Items by (base, number); none is empty."""

    def __bool__(self) -> bool:
        return bool(self._lists)

    def __len__(self) -> int:
        return sum(map(len, self._lists.values()))

    def __iter__(self) -> Iterator[T]:
        """Walk the items in their present order; some may be added or removed meanwhile."""
        return map(_item, self.keyed())

    def add(self, place: Place, number: int, item: T) -> None:
        """Add an item, whose number no other of its place has."""
        insort(self._lists.setdefault(place.work_class, []), (place.base, number, item))

    def remove(self, place: Place, number: int) -> None:
        """Remove the item that was added with this place and number."""
        items = self._lists[place.work_class]
        del items[bisect_left(items, (place.base, number))]
        if not items:
            del self._lists[place.work_class]

    def first(self) -> T:
        """Return the first item; there must be one."""
        boost_of = self._boosts.of
        heads = [
            (items[0][0] + boost_of(work_class), *items[0][1:]) for work_class, items in self._lists.items()
        ]
        return min(heads)[2]

    def keyed(self) -> Iterator[Keyed[T]]:
        """Walk the items with their keys, as `__iter__` does."""
        heads = []
        for work_class, items in self._lists.items():
            boost, walk = self._boosts.of(work_class), iter(items.copy())
            base, number, item = next(walk)
            heads.append((base + boost, number, item, boost, walk))
        heapify(heads)
        while heads:
            key, number, item, boost, walk = heads[0]
            yield key, number, item
            following = next(walk, None)
            if following is None:
                heappop(heads)
            else:
                base, number, item = following
                heapreplace(heads, (base + boost, number, item, boost, walk))

    def backwards(self) -> Iterator[T]:
        """Walk the items from the last to the first, as `__iter__` does."""
        walks = [
            _boosted(items[::-1], self._boosts.of(work_class)) for work_class, items in self._lists.items()
        ]
        return map(_item, merge(*walks, reverse=True))

    def check(self) -> None:
        """Assert the invariants."""
        for work_class, items in self._lists.items():
            assert items, work_class
            places = [each[:2] for each in items]
            assert places == sorted(set(places)), work_class
        keys = [key for key, _, _ in self.keyed()]
        assert keys == sorted(keys)
        assert [*self.backwards()] == [*self][::-1]


def _boosted(items: list[Keyed[T]], boost: float) -> Iterator[Keyed[T]]:
    for base, number, item in items:
        yield base + boost, number, item
