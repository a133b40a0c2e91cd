"""The order by key in which classes of work have a boost that may change at any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.boost import RENEWAL_S, ProgramBoost
from autellix_backend.core.place import Place, WorkClass
from autellix_backend.core.queues.classed import ClassedOrder
from autellix_backend.core.statistics import ProgramStatistics, TokenCost
from autellix_backend.core.table import Program

# Whole milliseconds, so that no two keys differ by less than their last digit.
TIMES = st.integers(0, 10**6).map(lambda milliseconds: milliseconds / 1000)
WORK = st.integers(0, 24).map(lambda exponent: 2.0**exponent)


def make_boost() -> tuple[ProgramBoost, ProgramStatistics, TokenCost]:
    statistics, cost = ProgramStatistics(), TokenCost(0.001)
    statistics.sizes_of("").known = 2.0
    statistics.on_live(0.0)
    return ProgramBoost(0.7, statistics, cost), statistics, cost


class Boosts:
    """Boosts that a test sets."""

    def __init__(self, boosts: dict[WorkClass | None, float]) -> None:
        self._boosts = boosts
        self.epoch = 0
        self.tenants = ("",)

    def of(self, work_class: WorkClass | None) -> float:
        """Return the boost of a class."""
        return self._boosts[work_class]

    def set(self, work_class: WorkClass, boost: float) -> None:
        """Change the boost of a class."""
        self._boosts[work_class] = boost
        self.epoch += 1


def test_the_head_changes_with_the_boost_of_its_class() -> None:
    boosts = Boosts({WorkClass("", 9): -5.0, WorkClass("", 12): 0.0, None: 0.0})
    order = ClassedOrder[str](boosts)
    assert not order
    order.add(Place(10.0, WorkClass("", 9)), 1, "small")
    assert order.first() == "small"
    order.add(Place(7.0, WorkClass("", 12)), 2, "large")
    order.add(Place(8.0), 3, "plain")
    order.add(Place(8.0), 4, "later")
    assert (order.first(), list(order), len(order)) == ("small", ["small", "large", "plain", "later"], 4)

    boosts.set(WorkClass("", 9), -2.5)

    assert (order.first(), list(order)) == ("large", ["large", "small", "plain", "later"])
    order.remove(Place(7.0, WorkClass("", 12)), 2)
    order.remove(Place(10.0, WorkClass("", 9)), 1)
    assert (order.first(), list(order)) == ("plain", ["plain", "later"])
    order.check()


def test_a_walk_does_not_mind_what_is_removed_meanwhile() -> None:
    order = ClassedOrder[int]()
    for number in range(4):
        order.add(Place(0.0), number, number)
    walk = iter(order)
    assert next(walk) == 0
    for number in range(3):
        order.remove(Place(0.0), number)

    assert list(walk) == [1, 2, 3]


@given(
    st.lists(st.tuples(TIMES, WORK), min_size=1, max_size=30),
    st.lists(st.tuples(st.floats(0.0, 3.0), TIMES, st.floats(1e-6, 1e-2)), min_size=1, max_size=5),
)
def test_the_head_is_that_of_a_plain_sort_by_the_keys_of_today(
    programs: list[tuple[float, float]], states: list[tuple[float, float, float]]
) -> None:
    """Whatever spread, response time and cost have become since the programs got their places."""
    boost, statistics, cost = make_boost()
    entries = [
        (Program(program_id=str(number), created_s=arrival_s, work=work), number)
        for number, (arrival_s, work) in enumerate(programs)
    ]
    order = ClassedOrder[int](boost)
    for program, number in entries:
        order.add(boost.place(program), number, number)
    now = 0.0
    for spread, live_s, token_s in states:
        statistics.sizes_of("").known = spread
        now += live_s
        statistics.on_idle(now)
        statistics.on_live(now)
        cost.observe(1.0, token_s)
        boost.renew(now := now + RENEWAL_S)
        keys = [(boost.key_s(program), number) for program, number in entries]

        assert [(key, number) for key, number, _ in order.keyed()] == sorted(keys)
        assert order.first() == min(keys)[1]
