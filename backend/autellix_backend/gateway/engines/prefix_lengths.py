"""How many leading tokens programs have in common, where only the engine's usage shows it."""

from __future__ import annotations

from collections import OrderedDict, deque

MAX_PREFIXES = 1024
"""The prefixes kept, the most recently seen ones."""
SEEN = 8
"""The first calls of programs whose largest number counts."""


class PrefixLengths:
    """The lengths of prefixes that programs share, by prefix id. Pure.

    The first call of a program can only find in the cache what other programs have computed. It finds less
    where a part was evicted, so the largest of the last numbers counts.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, deque[int]] = OrderedDict()

    def tokens(self, prefix: str) -> int:
        """Return the length of a prefix; 0 if none is known."""
        return max(self._seen.get(prefix, (0,)))

    def learn(self, prefix: str, cached_tokens: int) -> None:
        """Learn from the prompt tokens that a program's first call found in the cache."""
        if cached_tokens <= 0:
            return
        self._seen.setdefault(prefix, deque(maxlen=SEEN)).append(cached_tokens)
        self._seen.move_to_end(prefix)
        if len(self._seen) > MAX_PREFIXES:
            self._seen.popitem(last=False)
