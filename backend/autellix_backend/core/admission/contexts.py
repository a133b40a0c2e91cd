"""The contexts of one program in KV memory, beginnings that they have in common counted once.

Counted are the contexts of live calls; without any, what the last one has left. To count the last contexts of
other strands as well, to which a tree search comes back, was tried: programs then grow in number of contexts
until they displace each other, and the tail of tree searches in short memory got longer still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    tokens: int
    shared: int
    """Leading tokens in common with the context that it follows."""
    follows: str | None


class ProgramContexts:
    """The contexts of a program by the ids of their calls."""

    def __init__(self) -> None:
        self._live: dict[str, _Held] = {}
        self._last_id: str | None = None
        self._last_tokens = 0
        """The context that the last call left."""

    def add(self, call_id: str, tokens: int, *, shared: int, follows: str | None) -> None:
        """Add the context of a call that arrives.

        Args:
            call_id: The call.
            tokens: Its prompt.
            shared: The leading tokens that it has in common with the context that it follows.
            follows: The call of that context, which may have left; None for the latest one known here.
        """
        if follows is None and shared:
            follows = next(reversed(self._live), self._last_id)
            if follows is None:
                # As after the program has lost its place: nothing here holds that beginning.
                shared = 0
        self._live[call_id] = _Held(tokens, shared, follows)

    def resize(self, call_id: str, tokens: int) -> None:
        """Set the present length of a live call's context."""
        self._live[call_id].tokens = tokens

    def leave(self, call_id: str, tokens: int) -> None:
        """Remove a call; nothing is left of its context without tokens."""
        left = self._live.pop(call_id)
        if tokens:
            self._last_id, self._last_tokens = call_id, tokens
        followers = [held for held in self._live.values() if held.follows == call_id]
        if len(followers) == 1 and left.follows is not None:
            # It alone holds on to the beginning of what has left.
            followers[0].follows, followers[0].shared = left.follows, min(followers[0].shared, left.shared)

    def tokens(self, prefix: int) -> int:
        """Return the KV memory of the program, beside the prefix that other programs hold as well."""
        return self.tokens_of(self._live, prefix) if self._live else max(0, self._last_tokens - prefix)

    def tokens_of(self, call_ids: Iterable[str], prefix: int) -> int:
        """Return the KV memory of some of the live calls beside the prefix."""
        counted = {call_id: self._live[call_id] for call_id in call_ids}
        own = 0
        begins: dict[str, int] = {}
        for held in counted.values():
            begin = max(held.shared, prefix)
            own += max(0, held.tokens - begin)
            if begin > prefix and held.follows is not None and held.follows not in counted:
                # What it follows has left, so all that begin alike hold that beginning once.
                begins[held.follows] = max(begins.get(held.follows, 0), min(begin, held.tokens) - prefix)
        return own + sum(begins.values())
