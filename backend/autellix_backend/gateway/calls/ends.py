"""The ends of programs and sessions, and who is told of them."""

from __future__ import annotations

from typing import Protocol


class EndObserver(Protocol):
    """Who is told of the ends of programs; must not raise, block or change anything."""

    def program_ended(self, program_id: str) -> None:
        """Learn that a program was ended; its running calls are still to be settled."""
        ...

    def session_ended(self, session_id: str) -> None:
        """Learn that a session was ended, and the programs that it alone kept."""
        ...

    def expire(self, now: float) -> None:
        """Learn what time it is, about once a second."""
        ...


class EndObservers:
    """Several observers that are told together, in their order."""

    def __init__(self, *observers: EndObserver) -> None:
        self._observers = observers

    def program_ended(self, program_id: str) -> None:
        """Tell each that a program was ended."""
        for observer in self._observers:
            observer.program_ended(program_id)

    def session_ended(self, session_id: str) -> None:
        """Tell each that a session was ended."""
        for observer in self._observers:
            observer.session_ended(session_id)

    def expire(self, now: float) -> None:
        """Tell each what time it is."""
        for observer in self._observers:
            observer.expire(now)
