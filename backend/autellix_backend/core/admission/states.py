"""The states of a program on one engine, and every move between them."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a program is; each state says which programs' memory it counts in."""

    def __init__(self, is_active: bool, waits: bool, is_parked: bool) -> None:
        self.is_active = is_active
        """Whether its contexts have room in KV memory."""
        self.waits = waits
        """Whether its calls wait for that room."""
        self.is_parked = is_parked
        """Whether it is inactive, and host memory keeps its context."""

    GONE = (False, False, False)
    """Unknown: it has no call, and nothing is kept for it."""
    WAITING = (False, True, False)
    ACTIVE = (True, False, False)
    """With calls, or idle between two of them."""
    PARKED = (False, False, True)
    """Parked, without a call."""
    RETURNING = (False, True, True)
    """Parked, and a call has come."""


class Move(Enum):
    """What can happen to a program."""

    ARRIVE = "add a call to"
    """The first call of a program that has none."""
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    """A program with calls loses its room."""
    DROP = "drop"
    """A program without a call loses its room."""
    PARK = "park"
    """Host memory keeps the context of a program that has just lost its room."""
    GIVE_UP = "give up"
    """Host memory no longer keeps the context."""
    LEAVE = "take the last call from"
    """An active program that has no call any more stays active."""


TRANSITIONS: dict[Move, dict[State, State]] = {
    Move.ARRIVE: {State.GONE: State.WAITING, State.PARKED: State.RETURNING},
    Move.ACTIVATE: {State.WAITING: State.ACTIVE, State.RETURNING: State.ACTIVE},
    Move.DEACTIVATE: {State.ACTIVE: State.WAITING},
    Move.DROP: {State.ACTIVE: State.GONE},
    Move.PARK: {State.WAITING: State.RETURNING, State.GONE: State.PARKED},
    Move.GIVE_UP: {State.RETURNING: State.WAITING, State.PARKED: State.GONE},
    Move.LEAVE: {State.WAITING: State.GONE, State.RETURNING: State.PARKED},
}
"""The state after each move, by the one before; a move that is not here is illegal."""
