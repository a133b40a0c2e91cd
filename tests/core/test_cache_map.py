"""The map of programs' blocks in an engine's cache, from stored and removed blocks."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from autellix_backend.core.balance.cache_map import CacheMap


@pytest.fixture
def cache() -> Iterator[CacheMap]:
    """A map of an empty cache, whose invariants are checked at the end."""
    made = CacheMap()
    made.begin(is_complete=True)
    yield made
    made.check()


def test_stored_blocks_are_held_until_they_are_removed(cache: CacheMap) -> None:
    cache.stored([1, 2, 3], 16, "p")
    cache.stored([3, 4], 16, "p")
    assert cache.held_tokens("p") == 64
    cache.removed([2, 9])
    assert cache.held_tokens("p") == 48
    cache.removed([1, 3, 4])
    assert (cache.held_tokens("p"), len(cache)) == (0, 0)


def test_a_shared_block_counts_for_each_program(cache: CacheMap) -> None:
    cache.stored([b"system"], 32, "p")
    cache.stored([b"system", b"own"], 32, "q")
    assert (cache.held_tokens("p"), cache.held_tokens("q"), len(cache)) == (32, 64, 2)
    cache.removed([b"system"])
    assert (cache.held_tokens("p"), cache.held_tokens("q")) == (0, 32)


def test_unreported_blocks_are_unknown(cache: CacheMap) -> None:
    cache.stored([1], 16, "p")
    cache.begin(is_complete=False)
    cache.stored([2], 16, "q")
    assert (cache.held_tokens("p"), cache.held_tokens("q")) == (None, 16)
    assert CacheMap().held_tokens("p") is None


@pytest.mark.parametrize("seed", range(20))
def test_the_map_equals_a_plain_table(cache: CacheMap, seed: int) -> None:
    generator = random.Random(seed)
    held: dict[int, set[str]] = {}
    for _ in range(300):
        names = generator.sample(range(40), 4)
        if generator.random() < 0.6:
            program = generator.choice("pqrs")
            cache.stored(names, 8, program)
            for name in names:
                held.setdefault(name, set()).add(program)
        else:
            cache.removed(names)
            for name in names:
                held.pop(name, None)
        cache.check()
        tokens: dict[str, int] = defaultdict(int)
        for programs in held.values():
            for program in programs:
                tokens[program] += 8
        assert [cache.held_tokens(program) for program in "pqrs"] == [tokens[program] for program in "pqrs"]
