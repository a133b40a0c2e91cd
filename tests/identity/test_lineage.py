"""Sub-agents lead to their roots, and nothing is kept for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.identity.lineage import MAX_DEPTH, Lineage


class Agents:
    """A lineage that remembers every parent that it is told."""

    def __init__(self, **settings: Any) -> None:
        self.lineage = Lineage(**settings)

    def __len__(self) -> int:
        return len(self.lineage)

    def root(self, scope: str, agent: str, parent: str | None, now: float) -> str:
        root = self.lineage.root(scope, agent, parent, now)
        if parent is not None:
            self.lineage.link(scope, agent, parent, now)
        return root

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lineage, name)


def test_a_parent_that_is_only_looked_at_is_not_remembered() -> None:
    lineage = Lineage(ttl_s=10)
    assert lineage.root("", "child", "root", 0) == "root"
    assert lineage.root("", "child", None, 0) == "child"


def test_a_grandchild_leads_to_the_root_whichever_is_named_first() -> None:
    lineage = Agents(ttl_s=10)
    assert lineage.root("", "grandchild", "child", 0) == "child"
    assert lineage.root("", "child", "root", 1) == "root"
    assert lineage.root("", "grandchild", None, 2) == "root"
    assert lineage.root("", "root", None, 3) == "root"


def test_a_parent_that_closes_a_circle_is_ignored() -> None:
    lineage = Agents(ttl_s=10)
    assert lineage.root("", "a", "a", 0) == "a"
    assert lineage.root("", "a", "b", 0) == "b"
    assert lineage.root("", "b", "a", 0) == "b"
    assert len(lineage) == 1


def test_links_leave_when_unused_and_stay_while_used() -> None:
    lineage = Agents(ttl_s=10)
    lineage.root("", "old", "root", 0)
    lineage.root("", "used", "root", 0)
    assert lineage.root("", "used", None, 9) == "root"
    lineage.expire(11)
    assert len(lineage) == 1
    assert lineage.root("", "old", None, 11) == "old"
    lineage.expire(21)
    assert len(lineage) == 0


def test_an_ended_agent_is_dropped() -> None:
    lineage = Agents(ttl_s=10)
    lineage.root("", "child", "root", 0)
    lineage.forget("", "child")
    lineage.forget("", "child")
    assert len(lineage) == 0


def test_the_depth_of_ancestry_is_bounded() -> None:
    lineage = Agents(ttl_s=10)
    for number in range(MAX_DEPTH + 5):
        lineage.root("", str(number + 1), str(number), 0)
    assert lineage.root("", str(MAX_DEPTH), None, 0) == "0"
    assert lineage.root("", str(MAX_DEPTH + 2), None, 0) == "2"


NAMES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(NAMES, st.none() | NAMES, st.integers(0, 5)), max_size=40))
def test_any_links_end_in_a_root_and_leave_nothing_behind(
    links: list[tuple[str, str | None, int]],
) -> None:
    lineage = Agents(ttl_s=10, max_links=4)
    now = 0
    for agent, parent, pause in links:
        now += pause
        root = lineage.root("", agent, parent, now)
        assert lineage.root("", root, None, now) == root
        assert len(lineage) <= 4
    lineage.expire(now + 10)
    assert len(lineage) == 0
