"""The tokens of each program in one engine's KV cache, block by block.

Engines name blocks by hashes of all tokens up to them, and the program that they stored or found them for. A
block that several programs share counts for each. What an engine evicts counts for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Block:
    tokens: int
    programs: set[str] = field(default_factory=set)


class CacheMap:
    """The blocks of one engine that belong to programs; as many entries as it has such blocks."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, _Block] = {}
        self._tokens: Counter[str] = Counter()
        self._is_complete = False

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._blocks)

    def begin(self, *, is_complete: bool) -> None:
        """Start over with an empty map.

        Args:
            is_complete: whether the cache is empty too; else it may hold blocks that were never reported.
        """
        self._blocks.clear()
        self._tokens.clear()
        self._is_complete = is_complete

    def stored(self, hashes: Iterable[Hashable], block_tokens: int, program_id: str) -> None:
        """Add blocks that a program's call filled or found."""
        for name in hashes:
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = _Block(block_tokens)
            if program_id not in block.programs:
                block.programs.add(program_id)
                self._tokens[program_id] += block.tokens

    def removed(self, hashes: Iterable[Hashable]) -> None:
        """Remove blocks that the engine evicted; some may be unknown."""
        for name in hashes:
            block = self._blocks.pop(name, None)
            if block is None:
                continue
            for program_id in block.programs:
                self._tokens[program_id] -= block.tokens
                if not self._tokens[program_id]:
                    del self._tokens[program_id]

    def held_tokens(self, program_id: str) -> int | None:
        """Return how many tokens of a program's contexts the cache holds; None if that is not known."""
        tokens = self._tokens.get(program_id)
        return tokens if tokens is not None or not self._is_complete else 0

    def check(self) -> None:
        """Assert the invariants."""
        tokens: Counter[str] = Counter()
        for block in self._blocks.values():
            assert block.programs, block
            tokens.update(dict.fromkeys(block.programs, block.tokens))
        assert tokens == self._tokens
