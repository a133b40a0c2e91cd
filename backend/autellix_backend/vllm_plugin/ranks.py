"""The order of calls as numbers, for vLLM, which has one number for each request: smaller runs earlier."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from autellix_backend.core.call import Call
from autellix_backend.core.place import Boosts, Place, WorkClass

_SEQUENCE_BITS = 56
_KEY_BITS = 56
# Keys are compared live by their microseconds.
_KEY_UNITS_PER_S = 1e6
_KEY_LIMIT = (1 << _KEY_BITS) - 1
# The key of a boosted program may lie long before the engine's clock began.
_KEY_ZERO = 1 << (_KEY_BITS - 1)
UNRANKED = 1 << (_SEQUENCE_BITS + _KEY_BITS + 16)
"""A number behind that of any tracked call."""


class Rank(NamedTuple):
    """The place of a call in the order of all."""

    base: int
    """The part of its number that is common to its group, less the boost."""
    own: int = 0
    """The rest of it."""
    group: Hashable = None
    """The calls that move together: their base alone changes. None for a call that moves alone."""
    work_class: WorkClass | None = None
    """The class of work whose boost counts, too."""
    boost: int = 0
    """The boost of the class of work, as of now."""

    @property
    def number(self) -> int:
        """The present place as one number."""
        return self.base + self.boost + self.own


def rank_of(call: Call, boosts: Boosts) -> Rank:
    """Return the place of a call in the order of its queue."""
    place = Place(call.own_key) if call.group is None else call.group.place
    key_units = max(0, min(_KEY_ZERO + round(place.base * _KEY_UNITS_PER_S), _KEY_LIMIT))
    # A held call has a sequence number below zero, which must not reach into the level.
    base = ((call.level << _KEY_BITS) | key_units) << _SEQUENCE_BITS
    return Rank(base, call.seq, call.group, place.work_class, boost_units(place.work_class, boosts))


def boost_units(work_class: WorkClass | None, boosts: Boosts) -> int:
    """Return the present boost of a class of work, as a part of a number."""
    return 0 if work_class is None else round(boosts.of(work_class) * _KEY_UNITS_PER_S) << _SEQUENCE_BITS
