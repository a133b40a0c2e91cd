"""The numbers of a program's threads, and what a fork makes of it."""

from __future__ import annotations

from autellix._programs import program as programs
from autellix._programs.program import ClientProgram


def test_named_threads_keep_their_numbers() -> None:
    program = ClientProgram("a", None)
    first, second = program.thread_id_of("planner"), program.thread_id_of("writer")
    assert [program.thread_id_of(name) for name in ("planner", "writer")] == [first, second] == [0, 1]


def test_names_that_are_not_used_are_forgotten() -> None:
    """The process's own program never ends, and a server may name a thread after each request."""
    program = ClientProgram(None, None, is_implicit=True)
    for number in range(programs.MAX_NAMED_THREADS + 100):
        program.thread_id_of(f"request {number}")
        program.thread_id_of("kept")
    assert len(program.named_thread_ids) == programs.MAX_NAMED_THREADS
    assert program.thread_id_of("kept") == 1


def test_forked_child_shares_no_thread_of_a_program_with_a_chosen_id() -> None:
    program = ClientProgram("a", "chosen")
    taken = program.take_thread_id()
    program.after_fork_in_child()
    assert program.program_id == "chosen"
    assert program.take_thread_id() != taken
    assert program.is_remote
