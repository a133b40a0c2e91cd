"""Publishes the ends of programs."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.stores.base import ProgramEnd

OnEnd = Callable[[ProgramEnd], None]


class EndFeed:
    """The subscribers to the ends of programs."""

    def __init__(self) -> None:
        self._subscribers: list[OnEnd] = []

    def subscribe(self, on_end: OnEnd) -> None:
        """Call `on_end` with each end from now on."""
        self._subscribers.append(on_end)

    def publish(self, end: ProgramEnd) -> None:
        """Call all subscribers."""
        for on_end in self._subscribers:
            on_end(end)
