"""The contexts of one program in KV memory; a beginning that several have in common counts once.

The contexts of live calls count; without any, the context that the last call left. Counting the last contexts
of other strands too, to which a tree search returns, was tried: programs then collect contexts until they
displace each other, and the tail of tree searches in scarce memory grows.
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
                # The program has lost its place since: nothing here holds that beginning.
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
            # It alone still holds the beginning of the call that left.
            followers[0].follows, followers[0].shared = left.follows, min(followers[0].shared, left.shared)

    def tokens(self, prefix: int) -> int:
        """Return the KV memory of the program, beside the prefix that other programs hold as well."""
        return self.tokens_of(self._live, prefix) if self._live else max(0, self._last_tokens - prefix)

    def tokens_of(self, call_ids: Iterable[str], prefix: int) -> int:
        """Return the KV memory of some of the live calls beside the prefix."""
        counted = {call_id: self._live[call_id] for call_id in call_ids}
        own_tokens = 0
        begins: dict[str, int] = {}
        for held in counted.values():
            begin = max(held.shared, prefix)
            own_tokens += max(0, held.tokens - begin)
            if begin > prefix and held.follows is not None and held.follows not in counted:
                # The context that it follows has left; the calls that share that beginning hold it once.
                begins[held.follows] = max(begins.get(held.follows, 0), min(begin, held.tokens) - prefix)
        return own_tokens + sum(begins.values())
