"""Where the time of an ended program went."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.settled_calls import settled_call

from autellix_backend.console.history.critical_path import critical_path, spent, spent_text
from autellix_backend.console.history.history import PastProgram
from autellix_backend.observe.settled_call import SettledCall


def call(call_id: str, began_s: float, settled_s: float, **fields: Any) -> SettledCall:
    defaults = {"thread_id": "0", "parents": None, "interceptions": (), "wait_s": 0.0}
    return settled_call(call_id=call_id, began_s=began_s, settled_s=settled_s, **{**defaults, **fields})


def program(*calls: SettledCall, left_out: int = 0) -> PastProgram:
    return PastProgram(program_id="p", start_s=0.0, began_at_s=0.0, calls=list(calls), left_out=left_out)


def path_of(*calls: SettledCall) -> list[str]:
    return [found.start.call_id for found in critical_path(calls)]


def test_the_path_follows_parents_then_the_thread_then_what_ended_last() -> None:
    a = call("a", 0, 1)
    quick = call("quick", 1, 2, thread_id="1", parents=("a",))
    slow = call("slow", 1, 5, thread_id="2", parents=("a",))
    joined = call("joined", 5, 6, parents=("quick", "slow"))
    assert path_of(a, quick, slow, joined) == ["a", "slow", "joined"]

    # Without parents, a call follows its thread; a new thread follows what was answered last.
    assert path_of(a, call("other", 0, 1.5, thread_id="9"), call("b", 2, 3)) == ["a", "b"]
    assert path_of(a, call("b", 2, 3, thread_id="7")) == ["a", "b"]


def test_a_call_without_parents_by_its_own_word_begins_the_path() -> None:
    assert path_of(call("a", 0, 1), call("b", 2, 3, parents=())) == ["b"]


def test_calls_without_a_length_that_name_each_other_end_the_walk() -> None:
    assert sorted(path_of(call("a", 1, 1, parents=("b",)), call("b", 1, 1, parents=("a",)))) == ["a", "b"]


def test_the_parts_are_those_of_the_path() -> None:
    found = spent(
        program(
            call("a", 0, 4, wait_s=3.0, inactive_s=2.0),
            call("b", 7, 9, wait_s=0.5, interceptions=(("search", 2.5),)),
        )
    )
    assert (found.inactive_s, found.queue_s, found.engine_s) == (2.0, 1.5, 2.5)
    assert (found.tools_s, found.client_s, found.critical_path) == (2.5, 0.5, ("a", "b"))


def test_the_words_name_what_there_was() -> None:
    text = spent_text(program(call("a", 0, 4, wait_s=3.0, inactive_s=2.0), call("b", 7, 9)))
    assert text == (
        "2 calls in 9.0 s: 2.0 s waiting for memory, 1.0 s waiting for a slot, 3.0 s in the engine, 3.0 s at "
        "its client. The critical path has 2 calls; the longest (a) took 4.0 s."
    )
    ended = program(call("a", 0, 0.25))
    ended.began_at_s, ended.ended_at_s = 1000.0, 1011.25
    assert spent_text(ended).endswith("in the engine. It stayed open for 11.0 s after its last answer.")
    assert spent_text(program(left_out=3)) == "3 calls in 0 s. 3 calls are not kept: they were too many."


SECONDS = st.floats(0, 30)
PARENTS = st.none() | st.lists(st.integers(0, 9), max_size=3)
DRAWN_CALL = st.tuples(
    st.integers(0, 20), st.integers(0, 9), st.integers(0, 3), SECONDS, SECONDS, PARENTS
)  # fmt: skip
CALLS = st.lists(DRAWN_CALL, min_size=1, max_size=10)


@given(CALLS)
def test_the_parts_add_up_to_the_duration(drawn: list[Any]) -> None:
    calls = [
        call(
            str(number),
            float(start),
            float(start + length),
            thread_id=str(thread),
            wait_s=wait_s,
            inactive_s=inactive_s,
            parents=None if parents is None else tuple(map(str, parents)),
            interceptions=(("t", 1.0),),
        )
        for number, (start, length, thread, wait_s, inactive_s, parents) in enumerate(drawn)
    ]
    ended = program(*calls)
    parts_s = spent(ended).parts_s.values()

    assert sum(parts_s) == pytest.approx(ended.duration_s)
    assert min(parts_s) >= 0
