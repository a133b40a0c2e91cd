"""Which programs share a system prefix, and which of their calls begin with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def call(
    number: int, prefill_tokens: int, shared_tokens: int = 0, prefix_from: int | None = None
) -> CallTrace:
    return CallTrace(
        id=number,
        parents=() if number == 0 else (number - 1,),
        thread="0",
        prefill_tokens=prefill_tokens,
        decode_tokens=10,
        shared_prefix_tokens=shared_tokens,
        prefix_from=prefix_from,
    )


PROGRAM = ProgramTrace(
    source="bfcl_gt",
    program_id="p",
    group="task",
    system_prefix_tokens=100,
    calls=(call(0, 120), call(1, 150, 130, 0), call(2, 200, 60, 0), call(3, 90), call(4, 120, 100, 2)),
)


def test_calls_that_repeat_the_start_of_the_first_begin_with_the_prefix() -> None:
    prefix = system_prefix(PROGRAM)
    assert prefix is not None
    assert prefix.tokens == (100, 100, 60, 0, 60)
    assert prefix.length == 100


@pytest.mark.parametrize(
    ("changes", "is_shared"),
    [
        ({}, True),
        ({"program_id": "q", "group": "other task"}, True),
        ({"system_prefix_tokens": 101}, False),
        ({"source": "tau_airline"}, False),
        # Longer than the whole prompt: as long as the prompt.
        ({"system_prefix_tokens": 1000}, False),
    ],
)
def test_equal_source_and_length_share(changes: dict[str, object], is_shared: bool) -> None:
    mine, other = system_prefix(PROGRAM), system_prefix(replace(PROGRAM, **changes))  # type: ignore[arg-type]
    assert mine is not None
    assert other is not None
    assert (mine.key == other.key) == is_shared


@pytest.mark.parametrize("tokens", [None, 0])
def test_a_trace_without_a_prefix_shares_none(tokens: int | None) -> None:
    assert system_prefix(replace(PROGRAM, system_prefix_tokens=tokens)) is None


def test_a_fitted_program_has_a_fitted_prefix() -> None:
    fitted = fit_program(PROGRAM, length_scale=0.5, max_context_tokens=60)
    assert fitted.system_prefix_tokens == 50
    assert fit_program(PROGRAM, length_scale=1, max_context_tokens=60).system_prefix_tokens == 50
    untouched = replace(PROGRAM, system_prefix_tokens=None)
    assert fit_program(untouched, length_scale=0.5, max_context_tokens=60).system_prefix_tokens is None
