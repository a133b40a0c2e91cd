"""Statistics of programs."""

from __future__ import annotations

import pytest

from autellix_lab.workload.describe import (
    PAPER_ROWS,
    critical_decode_tokens,
    describe,
    program_depth,
    program_width,
)
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def call(number: int, parents: tuple[int, ...], decode: int, gap_s: float | None = None) -> CallTrace:
    return CallTrace(
        id=number, parents=parents, thread="t", prefill_tokens=100, decode_tokens=decode, gap_before_s=gap_s
    )


def program(*calls: CallTrace) -> ProgramTrace:
    return ProgramTrace(source="s", program_id="p", calls=calls)


THREAD = program(call(0, (), 10), call(1, (0,), 20, 1.0))
DIAMOND = program(call(0, (), 10), call(1, (0,), 30), call(2, (0,), 5), call(3, (1, 2), 5))


def test_a_thread_has_width_one() -> None:
    """Its longest chain is all of it."""
    assert (program_width(THREAD), program_depth(THREAD), critical_decode_tokens(THREAD)) == (1.0, 2, 30)


def test_the_width_of_a_diamond() -> None:
    """Fifty tokens in all, forty-five on the longest chain of three calls."""
    assert program_width(DIAMOND) == pytest.approx(50 / 45)
    assert program_depth(DIAMOND) == 3


def test_a_program_that_generates_nothing_has_width_one() -> None:
    """There is nothing to run at the same time."""
    assert program_width(program(call(0, (), 0))) == 1.0


def test_statistics_of_two_programs() -> None:
    """Calls are averaged over programs, tokens over calls, gaps over calls with parents."""
    found = describe([THREAD, DIAMOND])

    assert (found.programs, found.calls, found.calls_per_program, found.calls_max) == (2, 6, 3.0, 4)
    assert found.decode_tokens == pytest.approx(80 / 6)
    assert (found.new_prefill_tokens, found.prompt_tokens) == (100.0, 100.0)
    assert (found.parallel_share, found.depth, found.gap_known_share) == (0.5, 2.5, 0.25)


def test_new_tokens_leave_out_the_shared() -> None:
    """A shared prefix counts in the prompt alone."""
    second = CallTrace(
        id=1,
        parents=(0,),
        thread="t",
        prefill_tokens=150,
        decode_tokens=1,
        shared_prefix_tokens=110,
        prefix_from=0,
    )
    found = describe([program(call(0, (), 10), second)])

    assert (found.new_prefill_tokens, found.prompt_tokens) == (70.0, 125.0)


def test_no_programs_are_rejected() -> None:
    """There is nothing to average."""
    with pytest.raises(ValueError, match="there are no programs"):
        describe([])


def test_the_paper_gives_no_maximum_for_its_trees() -> None:
    """The other rows have all numbers."""
    assert [kind for kind, row in PAPER_ROWS.items() if row.calls_max is None] == ["tree"]
