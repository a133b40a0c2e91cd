"""Maps of what was used last: bounded, forgetful, and fair to those that share one."""

from __future__ import annotations

from autellix_backend.core.recent import RecentMap


def make(ttl_s: float = 10.0, most: int = 4) -> RecentMap[str, int]:
    return RecentMap(ttl_s=ttl_s, max_entries=most)


def test_an_entry_leaves_when_it_was_not_used_for_a_while() -> None:
    seen = make()
    seen.put("one", "old", 1, 0.0)
    seen.put("one", "used", 2, 0.0)
    seen.put("other", "old", 3, 0.0)
    assert seen.use("one", "used", 9.0) == 2
    seen.expire(11.0)
    assert (len(seen), seen.count("one"), seen.count("other")) == (1, 1, 0)
    assert seen.has("one", "used")
    assert not seen.has("other", "old")


def test_a_full_map_drops_the_oldest_of_the_scope_that_has_the_most() -> None:
    seen = make()
    seen.put("quiet", "mine", 0, 0.0)
    for number in range(9):
        seen.put("loud", str(number), number, 1.0)
    assert (len(seen), seen.count("quiet"), seen.count("loud")) == (4, 1, 3)
    assert seen.has("loud", "8")


def test_entries_count_by_their_weight() -> None:
    seen = make(most=10)
    seen.put("quiet", "mine", 0, 0.0, 2)
    for number in range(5):
        seen.put("loud", str(number), number, 1.0, 3)
    assert (seen.count("quiet"), seen.count("loud")) == (1, 2)
    seen.put("loud", "4", 4, 1.0, 1)
    assert seen.use("loud", "4", 2.0) == 4
    seen.put("loud", "5", 5, 2.0, 4)
    assert (len(seen), seen.has("loud", "3")) == (4, True)
    seen.put("loud", "huge", 6, 3.0, 11)
    assert (len(seen), seen.has("quiet", "mine")) == (1, True)


def test_an_entry_is_discarded_once() -> None:
    seen = make()
    seen.put("one", "key", 1, 0.0)
    seen.discard("one", "key")
    seen.discard("one", "key")
    assert len(seen) == 0


def test_a_look_is_no_use() -> None:
    seen = make()
    seen.put("one", "key", 1, 0.0)
    seen.put("other", "key", 2, 5.0)
    assert (seen.get("one", "key"), seen.get("one", "none"), seen.get("nobody", "key")) == (1, None, None)
    assert list(seen.values()) == [1, 2]
    seen.expire(10.0)
    assert (seen.get("one", "key"), seen.get("other", "key")) == (None, 2)
