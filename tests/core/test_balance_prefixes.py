"""Shared prefixes: which engine has them, for how long, and how much of a prompt they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autellix_backend.core.balance.prefixes import MAX_PREFIXES, SharedPrefixes


@pytest.fixture
def prefixes() -> Iterator[SharedPrefixes]:
    """Prefixes whose invariants are checked at the end."""
    made = SharedPrefixes()
    yield made
    made.check()


def test_an_engine_has_a_prefix_while_programs_with_it_are_there(prefixes: SharedPrefixes) -> None:
    prefixes.joined("a", "tools")
    prefixes.joined("a", "tools")
    prefixes.left("a", "tools")
    assert (prefixes.has_members("a", "tools"), prefixes.has_members("b", "tools")) == (True, False)

    prefixes.left("a", "tools")
    assert not prefixes.has_members("a", "tools")


def test_a_prefix_is_cached_until_as_many_other_tokens_came(prefixes: SharedPrefixes) -> None:
    prefixes.used("a", "tools", 500)
    prefixes.used("a", "", 900)
    assert prefixes.is_cached("a", "tools", 1000)

    prefixes.used("a", "", 100)
    assert not prefixes.is_cached("a", "tools", 1000)
    prefixes.used("a", "tools", 10)
    assert prefixes.is_cached("a", "tools", 1000)
    assert not prefixes.is_cached("b", "tools", 1000)


def test_an_engine_that_is_lost_has_nothing_cached(prefixes: SharedPrefixes) -> None:
    prefixes.used("a", "tools", 500)
    prefixes.joined("a", "tools")
    prefixes.lost("a")
    prefixes.lost("never seen")

    assert not prefixes.is_cached("a", "tools", 1000)
    assert prefixes.has_members("a", "tools")


def test_the_share_is_learned_by_prefix_and_in_the_mean(prefixes: SharedPrefixes) -> None:
    assert prefixes.share("tools") == 0.0

    for _ in range(40):
        prefixes.learn("tools", 0.9)
    assert prefixes.share("tools") == pytest.approx(0.9)
    assert prefixes.share("unseen") == pytest.approx(0.9, abs=0.01)

    prefixes.learn("tools", 0.1)
    assert 0.5 < prefixes.share("tools") < 0.9


def test_memory_is_bounded(prefixes: SharedPrefixes) -> None:
    """What was not seen for longest is forgotten."""
    for number in range(MAX_PREFIXES + 10):
        prefixes.used("a", str(number), 1)
        prefixes.learn(str(number), 1.0)
    prefixes.check()

    assert not prefixes.is_cached("a", "0", 10**9)
    assert prefixes.is_cached("a", str(MAX_PREFIXES), 10**9)
