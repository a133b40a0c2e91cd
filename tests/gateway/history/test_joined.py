"""One program from the parts of several workers."""

from __future__ import annotations

from autellix_backend.gateway.history.ended_program import EndedCall, EndedProgram
from autellix_backend.gateway.history.history import OpenProgram
from autellix_backend.gateway.history.joined import joined, joined_by_id, joined_living


def call(call_id: str, start_s: float, finish_s: float) -> EndedCall:
    return EndedCall(
        call_id=call_id, thread_id="0", engine="e", outcome="ok", start_s=start_s, finish_s=finish_s
    )


FIRST = EndedProgram(
    program_id="p",
    name=None,
    began_at_s=1000.0,
    ended_at_s=1020.0,
    calls=(call("a", 0.0, 2.0), call("c", 5.0, 6.0)),
    left_out=1,
)
SECOND = EndedProgram(
    program_id="p",
    name="react",
    owner="me",
    began_at_s=1003.0,
    ended_at_s=1020.5,
    calls=(call("b", 0.0, 1.0), call("d", 6.0, 8.0)),
    left_out=2,
)


def test_calls_are_in_their_order_on_the_clock_of_the_whole_program() -> None:
    for parts in ((FIRST, SECOND), (SECOND, FIRST)):
        program = joined(parts)
        assert [(each.call_id, each.start_s, each.finish_s) for each in program.calls] == [
            ("a", 0.0, 2.0),
            ("b", 3.0, 4.0),
            ("c", 5.0, 6.0),
            ("d", 9.0, 11.0),
        ]
        assert (program.began_at_s, program.ended_at_s, program.duration_s) == (1000.0, 1020.5, 11.0)
        assert (program.name, program.owner, program.left_out) == ("react", "me", 3)


def test_a_part_that_two_workers_read_from_one_file_counts_once() -> None:
    program = joined((FIRST, FIRST, SECOND))
    assert [each.call_id for each in program.calls] == ["a", "b", "c", "d"]
    assert program.left_out == 3


def test_each_program_is_there_once() -> None:
    other = EndedProgram(program_id="q", began_at_s=1.0, ended_at_s=2.0, calls=())
    assert joined_by_id([FIRST, other, SECOND]) == [joined((FIRST, SECOND)), other]


def test_a_program_that_has_not_ended_is_joined_too() -> None:
    parts = [
        OpenProgram("t", 50.0, calls=[call("b", 0.0, 1.0)], left_out=1),
        OpenProgram("t", 48.0, calls=[call("a", 0.0, 9.0)]),
    ]
    program = joined_living(parts)
    assert program is not None
    assert (program.start_s, program.left_out) == (48.0, 1)
    assert [(each.call_id, each.start_s) for each in program.calls] == [("a", 0.0), ("b", 2.0)]


def test_what_nobody_knows_is_nothing() -> None:
    assert joined_living([]) is None
