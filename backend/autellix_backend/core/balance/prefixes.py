"""The prefixes that programs share, such as instructions and tools: on which engines they are, and how long.

A prefix is in an engine's working set while programs with it are there. It stays in the prefix cache for a
while after that: a cache of N tokens keeps what was used within the last N tokens of other prompts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

MAX_PREFIXES = 1024
"""The most that are remembered, in all and for each engine; the least recently seen one is dropped."""
LEARNING_RATE = 0.25
"""Weight of the latest first call in the share of its prefix: about the last four count."""


class SharedPrefixes:
    """Where each prefix is, and which share of the first prompts of its programs it is."""

    def __init__(self) -> None:
        self._shares: OrderedDict[str, float] = OrderedDict()
        self._mean_share = 0.0
        """The mean share over all prefixes, used for those without a share of their own."""
        self._members: Counter[tuple[str, str]] = Counter()
        """Programs by engine and prefix."""
        self._placed_tokens: Counter[str] = Counter()
        """New tokens of all calls sent to each engine."""
        self._used_at: dict[str, OrderedDict[str, int]] = {}
        """`_placed_tokens` at the last call with a prefix, by engine and prefix."""

    def joined(self, engine: str, prefix: str) -> None:
        """Count a program with the prefix on an engine."""
        self._members[engine, prefix] += 1

    def left(self, engine: str, prefix: str) -> None:
        """Remove a program that joined before."""
        self._members[engine, prefix] -= 1
        if not self._members[engine, prefix]:
            del self._members[engine, prefix]

    def used(self, engine: str, prefix: str, new_tokens: int) -> None:
        """Note a call that is sent to an engine, and how many tokens it adds to the cache."""
        self._placed_tokens[engine] += new_tokens
        used_at = self._used_at.setdefault(engine, OrderedDict())
        used_at[prefix] = self._placed_tokens[engine]
        _bound(used_at, prefix)

    def lost(self, engine: str) -> None:
        """Forget what an engine had cached; its programs stay counted."""
        self._used_at.pop(engine, None)
        self._placed_tokens.pop(engine, None)

    def has_members(self, engine: str, prefix: str) -> bool:
        """Whether a program with the prefix is on the engine."""
        return (engine, prefix) in self._members

    def is_cached(self, engine: str, prefix: str, kv_tokens: float) -> bool:
        """Whether the prefix should still be in an engine's cache of this size."""
        used_at = self._used_at.get(engine, OrderedDict()).get(prefix)
        return used_at is not None and self._placed_tokens[engine] - used_at < kv_tokens

    def share(self, prefix: str) -> float:
        """Return the expected share of a first prompt that the prefix is."""
        return self._shares.get(prefix, self._mean_share)

    def learn(self, prefix: str, share: float) -> None:
        """Learn from the first call of a program whose prefix its engine had cached."""
        before = self._shares.get(prefix, share)
        self._shares[prefix] = before + LEARNING_RATE * (share - before)
        _bound(self._shares, prefix)
        self._mean_share += LEARNING_RATE * (share - self._mean_share)

    def check(self) -> None:
        """Assert the invariants."""
        assert all(count > 0 for count in self._members.values())
        assert len(self._shares) <= MAX_PREFIXES
        assert all(len(used_at) <= MAX_PREFIXES for used_at in self._used_at.values())


def _bound(prefixes: OrderedDict[str, float] | OrderedDict[str, int], seen: str) -> None:
    prefixes.move_to_end(seen)
    if len(prefixes) > MAX_PREFIXES:
        prefixes.popitem(last=False)
