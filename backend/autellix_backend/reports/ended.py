"""The programs that have ended, for the engines that may keep KV memory for them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_ENDED = 256
"""Ends that wait for the next call to an engine; it finds out about older ones by their idle time."""


class EndedPrograms:
    """The programs that had calls at one engine and have ended since it last received a call.

    Ends go with calls, and once more if it is not certain that they arrived: a repeated end does no harm. An
    engine with a report link gets them at once too.
    """

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._ended: dict[str, None] = {}

    def on_sent(self, program_id: str) -> tuple[str, ...]:
        """Note that a call is sent; return the ends that go with it."""
        self._live.add(program_id)
        self._ended.pop(program_id, None)
        return tuple(self._ended)

    def on_received(self, program_ids: Iterable[str]) -> None:
        """Drop ends that the engine has received."""
        for program_id in program_ids:
            self._ended.pop(program_id, None)

    def on_last_received(self, program_id: str) -> None:
        """Note that the engine has a call which ends its program."""
        self._live.discard(program_id)

    def on_program_ended(self, program_id: str) -> bool:
        """Keep the end of a program if the engine knows the program; return whether it does."""
        if program_id not in self._live:
            return False
        self._live.remove(program_id)
        self._ended[program_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return True

    def clear(self) -> None:
        """Forget everything: the engine was restarted."""
        self._live.clear()
        self._ended.clear()
