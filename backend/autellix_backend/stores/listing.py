"""Places in the list of programs, and the cursors that continue a listing."""

from __future__ import annotations

import re
from typing import NamedTuple

_CURSOR = re.compile(r"([ai])(\d{1,15})", re.ASCII)


class ListingPlace(NamedTuple):
    """A place in the listing: among the active programs or the idle ones, which come next, by arrival."""

    is_idle: bool
    number: int

    @classmethod
    def read(cls, cursor: str | None, *, is_active: bool | None) -> ListingPlace:
        """Return the place of a cursor, or the beginning.

        Raises:
            ValueError: if it is no cursor.
        """
        if cursor is None:
            return cls(is_active is False, 0)
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise ValueError(f"is {cursor!r}; expected the cursor of an earlier page")
        return cls(found[1] == "i", int(found[2]))

    @property
    def cursor(self) -> str:
        """The cursor of a page that begins behind this place."""
        return f"{'i' if self.is_idle else 'a'}{self.number}"
