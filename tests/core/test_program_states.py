"""The moves of a program on an engine: legal ones as in the table, all others an error with its story."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.test_admission import Engine

from autellix_backend.core.admission.programs import ProgramContext
from autellix_backend.core.admission.states import TRANSITIONS, Move, State
from autellix_backend.core.errors import IllegalMoveError

VERBS = ("arrive", "activate", "deactivate", "give_up", "leave", "end")


def in_state(state: State) -> tuple[Engine, ProgramContext]:
    """Return an engine with host memory, whose queues are empty, and its program `a` in a state."""
    engine = Engine()
    memory = engine.admission.memory
    engine.admission.use_host_memory(lambda program_id, tokens: (1.0, 0.0), 1000.0)
    engine.arrive("a1", 30)
    context = memory.programs["a"]
    if state is not State.ACTIVE:
        memory.deactivate(context, engine.now)
    if state in (State.PARKED, State.GONE):
        del context.calls["a1"]
        context.contexts.leave("a1", 30)
        memory.leave(context, engine.now)
    if state in (State.WAITING, State.GONE):
        memory.give_up(context)
    memory.take_changed()
    memory.check()
    assert context.state is state
    return engine, context


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", Move)
def test_a_move_that_is_not_in_the_table_is_an_error_that_tells_the_story(state: State, move: Move) -> None:
    _, context = in_state(state)
    after = TRANSITIONS[move].get(state)
    if after is not None:
        assert context.after(move) is after
        return
    with pytest.raises(IllegalMoveError) as error:
        context.after(move)
    calls = 1 if state.is_active or state.waits else 0
    assert str(error.value) == (
        f"cannot {move.value} program 'a' while it is {state.name.lower()}"
        f" ({calls} calls, 30 tokens, since 0.000 s)"
    )


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_moves_a_program_in_all_sets_or_in_none(state: State, verb: str) -> None:
    engine, context = in_state(state)
    memory = engine.admission.memory
    before = (memory.active.tokens, memory.parked.tokens, len(memory.inactive), dict(memory.programs))
    arguments: tuple[Any, ...] = (engine.now,) if verb in ("arrive", "deactivate", "leave") else ()
    try:
        getattr(memory, verb)(context, *arguments)
    except IllegalMoveError:
        assert context.state is state
        assert (
            memory.active.tokens,
            memory.parked.tokens,
            len(memory.inactive),
            memory.programs,
        ) == before
    else:
        memory.active.check()
        memory.parked.check()
        for name, contexts in (
            ("is_active", memory.active.contexts),
            ("waits", memory.inactive.contexts),
            ("is_parked", memory.parked.contexts),
        ):
            assert ("a" in contexts) is getattr(context.state, name), name
        assert ("a" in memory.programs) is (context.state is not State.GONE)


def test_each_state_is_left_and_reached() -> None:
    befores = {state for moves in TRANSITIONS.values() for state in moves}
    afters = {state for moves in TRANSITIONS.values() for state in moves.values()}

    assert befores == afters == {*State}
    assert TRANSITIONS.keys() == {*Move}
