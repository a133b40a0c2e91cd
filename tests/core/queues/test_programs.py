"""The queue by program."""

from __future__ import annotations

import math

from tests.core.calls import make_call

from autellix_backend.core.call import Call, ChangeReason
from autellix_backend.core.place import Place
from autellix_backend.core.queues.programs import ProgramQueue
from autellix_backend.core.table import Program


def make(name: str) -> Call:
    return make_call(name, name[0])


def program(key: float) -> Program:
    """Return a program of this key."""
    return Program(program_id="p", created_s=key)


def names(queue: ProgramQueue) -> str:
    queue.check()
    return " ".join(call.call_id for call in queue)


def filled(**keys: float) -> tuple[ProgramQueue, dict[str, Call], dict[str, Program]]:
    """Return a queue with a call of each program."""
    queue = ProgramQueue(lambda program: Place(program.created_s))
    calls, programs = {}, {}
    for name, key in keys.items():
        calls[name], programs[name] = make(name), program(key)
        queue.insert(calls[name], programs[name])
    return queue, calls, programs


def test_the_program_with_the_smallest_key_goes_first_and_among_equals_the_first_to_arrive() -> None:
    queue, calls, _ = filled(a=2.0, b=1.0, c=2.0, d=0.0)

    assert names(queue) == "d b a c"
    assert queue.level_sizes() == (4,)
    assert {(call.level, call.quantum_s, call.is_quantum_binding) for call in calls.values()} == {
        (1, math.inf, False)
    }


def test_calls_of_one_program_run_in_order_of_their_arrival() -> None:
    queue, _, programs = filled(a=2.0, b=3.0)
    queue.insert(make("b2"), programs["b"])
    queue.insert(make("a2"), programs["a"])

    assert names(queue) == "a a2 b b2"


def test_programs_of_one_key_run_in_order_of_the_arrival_of_each_call() -> None:
    queue, calls, programs = filled(a=1.0, b=1.0, c=2.0)
    for name in ("a2", "c2", "b2", "a3"):
        calls[name] = make(name)
        queue.insert(calls[name], programs[name[0]])
    assert names(queue) == "a b a2 b2 a3 c c2"

    queue.remove(calls["a"])

    assert names(queue) == "b a2 b2 a3 c c2"


def test_all_calls_of_a_program_move_with_one_of_them() -> None:
    queue, calls, programs = filled(a=1.0, b=2.0)
    for name in ("a2", "a3"):
        calls[name] = make(name)
        queue.insert(calls[name], programs["a"])
    queue.remove(calls["a"])
    assert queue.first_of("a") is calls["a2"]
    programs["a"].created_s = 3.0

    queue.on_quantum_used(calls["a3"], programs["a"])

    assert names(queue) == "b a2 a3"
    assert {calls[name].key for name in ("a2", "a3")} == {3.0}
    assert queue.first_of("unknown") is None


def test_a_call_takes_the_present_key_of_its_program() -> None:
    queue, calls, programs = filled(a=1.0, b=2.0)
    programs["a"].created_s = 3.0
    assert names(queue) == "a b"

    change = queue.on_quantum_used(calls["a"], programs["a"])

    assert names(queue) == "b a"
    assert (change.call_id, change.old, change.new, change.reason) == ("a", 1, 1, ChangeReason.RESIZING)


def test_no_call_is_promoted() -> None:
    queue, calls, _ = filled(a=1.0, b=2.0)

    queue.promote(calls["b"])

    assert names(queue) == "a b"
