"""The order in which programs are listed, and the cursors that continue a listing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

SLACK = 64
"""Places of dropped programs that the order may keep, beside as many as it has programs."""
_CURSOR = re.compile(r"([ai])(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListingPlace:
    """A place in the listing: among the active programs or the idle ones, which come next, by arrival."""

    is_active: bool
    number: int

    @classmethod
    def read(cls, cursor: str | None, *, is_active: bool | None) -> ListingPlace:
        """Return the place of a cursor, or the beginning.

        Raises:
            ValueError: if it is no cursor.
        """
        if cursor is None:
            return cls(is_active is not False, 0)
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise ValueError(f"is {cursor!r}; expected the cursor of an earlier page")
        return cls(found[1] == "a", int(found[2]))

    @property
    def cursor(self) -> str:
        """The cursor of a page that begins behind this place."""
        return f"{'a' if self.is_active else 'i'}{self.number}"

    def next_kind(self, *, is_active: bool | None) -> ListingPlace | None:
        """Return the beginning of the idle programs if they follow, else None."""
        return ListingPlace(is_active=False, number=0) if self.is_active and is_active is None else None


class ArrivalOrder:
    """Ids by the number of their arrival; a listing begins anywhere without passing what comes before."""

    def __init__(self) -> None:
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._places: list[tuple[int, str]] = []

    def add(self, name: str) -> None:
        """Append an id that is not there."""
        self._last += 1
        self._numbers[name] = self._last
        self._places.append((self._last, name))

    def remove(self, name: str) -> None:
        """Remove an id."""
        del self._numbers[name]
        if len(self._places) > 2 * len(self._numbers) + SLACK:
            self._places = [(number, name) for name, number in self._numbers.items()]

    def after(self, number: int) -> Iterator[tuple[int, str]]:
        """Iterate over the numbers above one, and their ids; nothing may change meanwhile."""
        for index in range(bisect_right(self._places, number, key=itemgetter(0)), len(self._places)):
            found, name = self._places[index]
            if self._numbers.get(name) == found:
                yield found, name
