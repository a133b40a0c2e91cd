"""Bounds of the levels by the cost of a mean call."""

from __future__ import annotations

import pytest

from autellix_lab.sim.bounds import choose_bounds
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def test_the_first_bound_is_half_a_mean_call_s_cost_and_the_others_double() -> None:
    """Two calls that prefill 100 and 300 tokens and decode 10 and 30: 20 ms of prefill, 20 steps of 12 ms."""
    model = EngineModel(max_num_seqs=4, step_s=0.01, decode_s=0.0005, prefill_s=0.0001)
    first = CallTrace(id=0, parents=(), thread="t", prefill_tokens=100, decode_tokens=10)
    second = CallTrace(
        id=1,
        parents=(0,),
        thread="t",
        prefill_tokens=400,
        decode_tokens=30,
        shared_prefix_tokens=100,
        prefix_from=0,
    )
    program = ProgramTrace(source="s", program_id="p", calls=(first, second))

    bounds = choose_bounds(model, [program])
    assert bounds == pytest.approx([0.13 * 2**level for level in range(9)])
