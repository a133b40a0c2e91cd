"""The lengths of prefixes that programs share, as far as the engine's usage shows them."""

from __future__ import annotations

from autellix_backend.gateway.engines.prefix_lengths import MAX_PREFIXES, SEEN, PrefixLengths


def test_a_part_that_was_evicted_does_not_shorten_a_prefix() -> None:
    lengths = PrefixLengths()
    assert lengths.tokens("p") == 0
    for cached_tokens in (0, 320, 960, 640):
        lengths.learn("p", cached_tokens)
    assert lengths.tokens("p") == 960
    assert lengths.tokens("q") == 0


def test_a_prefix_that_became_shorter_is_learned_again() -> None:
    lengths = PrefixLengths()
    for cached_tokens in (960, *[640] * SEEN):
        lengths.learn("p", cached_tokens)
    assert lengths.tokens("p") == 640


def test_the_latest_prefixes_are_kept() -> None:
    lengths = PrefixLengths()
    lengths.learn("old", 32)
    for number in range(MAX_PREFIXES):
        lengths.learn(str(number), 64)
    assert lengths.tokens("old") == 0
    assert lengths.tokens("0") == 64
