"""Deadlines, against a plain dict; and that what is not due is not looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.stores.deadlines import Deadlines

NAMES = st.sampled_from("abc")
TIMES = st.integers(0, 9).map(float)
STEPS = st.one_of(
    st.tuples(st.just("set"), NAMES, TIMES),
    st.tuples(st.just("remove"), NAMES, TIMES),
    st.tuples(st.just("due"), NAMES, TIMES),
)


@given(st.lists(STEPS, max_size=40))
def test_they_are_those_of_a_dict(steps: list[tuple[str, str, float]]) -> None:
    deadlines, model = Deadlines(), dict[str, float]()
    for kind, name, moment in steps:
        if kind == "set":
            deadlines.set(name, moment)
            model[name] = moment
        elif kind == "remove":
            assert deadlines.remove(name) is (model.pop(name, None) is not None)
        else:
            assert deadlines.is_due(name, moment) is (name in model and model[name] <= moment)
            assert sorted(deadlines.due(moment)) == sorted(n for n, at in model.items() if at <= moment)
        assert (len(deadlines), "a" in deadlines) == (len(model), "a" in model)


def test_moving_a_moment_on_keeps_one_entry() -> None:
    deadlines = Deadlines()
    for moment in range(1000):
        deadlines.set("a", float(moment))
    assert len(deadlines._heap) == 1
    assert deadlines.due(998.0) == []
    assert deadlines.due(999.0) == ["a"]
