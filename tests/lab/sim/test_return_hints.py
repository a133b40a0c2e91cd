"""The simulated halves that state their next calls: what they state, and whom it helps in a small run."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("return_hints")


def test_a_call_states_the_gap_behind_it_and_the_last_one_nothing(benchmark: Any) -> None:
    program, other = benchmark.programs_of("tools", 0)[:2]
    senders = frozenset({program.program_id})
    first, second, last = program.calls[0], program.calls[1], program.calls[-1]
    assert second.parents == (first.id,)

    for what, expected in (
        ("nothing", None),
        ("always an hour", 3600.0),
        ("the true time", second.gap_before_s),
    ):
        stated = benchmark.statements([program, other], senders, (what, "always a second"))
        assert stated(program, first) == expected
        assert (stated(program, last), stated(other, other.calls[0])) == (None, 1.0)


def test_half_of_the_programs_states_something_and_the_same_for_a_seed(benchmark: Any) -> None:
    programs = benchmark.programs_of("coding", 1)

    assert len(benchmark.senders_of(programs, 1)) == len(programs) / 2
    assert (
        benchmark.senders_of(programs, 1)
        == benchmark.senders_of(programs, 1)
        != benchmark.senders_of(programs, 2)
    )


def test_the_scheduler_of_a_simulation_gets_what_is_stated(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that always state an hour find less of their prompts in the cache than without a statement."""
    monkeypatch.setitem(benchmark.WORKLOADS, "tools", benchmark.Workload(30, 3.0, 1.0))
    model = EngineModel(max_num_seqs=4, kv_blocks=2500, prefill_s=0.001)
    rows = benchmark.figures_of("tools", 0, SimSettings(model=model, scheduler=SchedulerConfig()))
    found = {case: row[2] for case, row in zip(benchmark.CASES, rows, strict=True)}

    assert rows[0][0] > 0
    assert found["always an hour", "nothing"] < found["nothing", "nothing"]
