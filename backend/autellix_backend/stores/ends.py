"""Publishes the ends of programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autellix_backend.stores.base import ProgramEnd

MAX_LATEST_ENDS = 1000
"""Far more than end between two rounds of the reaper, when each gateway learns of the others' ends."""

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


class LatestEnds(EndFeed):
    """A feed whose sources may report an end twice: it is published once until the program begins again."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the programs whose end was published and that have not begun since."""
        return iter(self._latest)

    def on_begin(self, program_id: str) -> None:
        """Note that a program has begun."""
        self._latest.pop(program_id, None)

    def publish(self, end: ProgramEnd) -> None:
        """Call all subscribers, unless the end was published."""
        if end.program_id in self._latest:
            return
        self._latest[end.program_id] = None
        if len(self._latest) > MAX_LATEST_ENDS:
            del self._latest[next(iter(self._latest))]
        super().publish(end)
