"""The shared table's stream of ended programs, as one gateway reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autellix_backend.stores.base import ProgramEnd, program_work
from autellix_backend.stores.ends import EndFeed

NO_EVENT = "0-0"


class EndStream(EndFeed):
    """Publishes each end once, whether the answer to an operation or the reaper's reading brings it first."""

    def __init__(self) -> None:
        super().__init__()
        self.last_event = NO_EVENT
        """The latest entry that the reaper has read."""
        self._published: set[bytes] = set()
        """Entries that an answer brought before the reaper reads them."""

    def restart(self, last_event: str) -> None:
        """Continue after an entry of another table's stream."""
        self.last_event = last_event
        self._published.clear()

    def on_answer(self, gone: Sequence[Sequence[bytes]]) -> None:
        """Publish the ends that an operation of this gateway brought about."""
        for event, *values in gone:
            if _event_order(event) > _event_order(self.last_event.encode()):
                self._published.add(event)
                self.publish(decode_end(*values))

    def on_news(self, news: Sequence[Any]) -> None:
        """Publish the ends whose answers went to other gateways, or were lost on their way here."""
        for event, values in news:
            self.last_event = event.decode()
            if event in self._published:
                self._published.remove(event)
            else:
                self.publish(decode_end(*values))


def decode_end(program_id: bytes, *values: bytes) -> ProgramEnd:
    """Return the end that the script `drop` describes; what the program does not have is empty."""
    _, _, _, class_id, _, *counts = values
    prompt_tokens, cached_tokens, output_tokens = (int(count or 0) for count in counts)
    return ProgramEnd(
        program_id=program_id.decode(),
        class_id=class_id.decode() or None,
        work=program_work(prompt_tokens, cached_tokens, output_tokens),
    )


def _event_order(event: bytes) -> tuple[int, ...]:
    return tuple(map(int, event.split(b"-")))
