"""The demo's two parts: their programs, loads and engines."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.cli import demo
from autellix_lab.demo.parts import (
    BLOCK_TOKENS,
    GOALS,
    MAX_SCARCE_CONTEXT_TOKENS,
    MIN_FITTING,
    SCARCE,
    DemoOptions,
    Part,
    demo_parts,
)
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import ProgramTrace, TraceError


@pytest.fixture(scope="module")
def options() -> DemoOptions:
    """Return the command's defaults."""
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    args = parser.parse_args([])
    return demo.options_of(args)


def test_the_first_part_has_ample_memory_and_two_loads(options: DemoOptions) -> None:
    ample, _ = demo_parts(options)
    saturated, below = ample.loads
    assert ample.kv_tokens is None
    assert (len(saturated.programs), len(below.programs)) == (39, 8)
    assert saturated.rho > 1 > below.rho
    assert {program.source for program in ample.programs} == {
        f"generated_{kind}" for kind in ("chat", "react", "tree")
    }


@pytest.fixture(scope="module", params=SCARCE)
def short(request: pytest.FixtureRequest, options: DemoOptions) -> Part:
    """Return the second part with each of its workloads."""
    return demo_parts(dataclasses.replace(options, kv_workload=request.param))[1]


def own_tokens(programs: Sequence[ProgramTrace]) -> dict[str, int]:
    """Return the longest context of each program beside its system prefix."""
    return {
        program.program_id: max(call.context_tokens for call in program.calls)
        - (program.system_prefix_tokens or 0)
        for program in programs
    }


def prefix_tokens(programs: Sequence[ProgramTrace]) -> int:
    """Return the tokens of all different system prefixes."""
    prefixes = [prefix for program in programs if (prefix := system_prefix(program)) is not None]
    assert len(prefixes) == len(programs)
    return sum({prefix.key: prefix.length for prefix in prefixes}.values())


def test_the_second_part_is_short_of_memory(short: Part, options: DemoOptions) -> None:
    """Its contexts are more than twice the memory; each of them fits, with its prefix and its gaps."""
    assert short.kv_tokens == (options.kv_blocks - 1) * BLOCK_TOKENS
    assert prefix_tokens(short.programs) + sum(own_tokens(short.programs).values()) > 2 * short.kv_tokens
    for program in short.programs:
        assert max(call.context_tokens for call in program.calls) <= MAX_SCARCE_CONTEXT_TOKENS
    repeated = sum(call.shared_prefix_tokens for program in short.programs for call in program.calls)
    prompts = sum(call.prefill_tokens for program in short.programs for call in program.calls)
    assert repeated / prompts > 0.85
    assert sum(call.gap_before_s or 0.0 for program in short.programs for call in program.calls) > 0


def test_by_default_coding_sessions_hold_three_to_six_times_the_memory_at_once(options: DemoOptions) -> None:
    """Simulated under fcfs, at about the rate that the demo measures."""
    short = demo_parts(options)[1]
    kv_tokens = short.kv_tokens or 0
    model = EngineModel(
        max_num_seqs=options.max_num_seqs,
        step_s=0.004,
        decode_s=0.0004,
        prefill_s=0.00006,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=kv_tokens // BLOCK_TOKENS,
    )
    arrivals_s = poisson_arrivals(len(short.programs), 15.0, options.seed)
    arrivals = zip(arrivals_s, short.programs, strict=True)
    records = simulate(arrivals, SimSettings(model=model, scheduler=SchedulerConfig(policy="fcfs"))).programs
    own = own_tokens(short.programs)
    alive = [
        sum(own[other.program_id] for other in records if other.arrival_s <= at < other.finish_s)
        for at in arrivals_s
    ]

    assert {program.source for program in short.programs} == {"generated_coding"}
    assert 3 <= (prefix_tokens(short.programs) + max(alive)) / kv_tokens <= 6


def test_calibration_programs_fit_into_short_memory_and_have_no_gaps(short: Part) -> None:
    own = own_tokens(short.calibration)

    assert len(short.calibration) == pytest.approx(2 * short.calibration_slots, abs=1)
    assert len(short.calibration) >= MIN_FITTING
    assert prefix_tokens(short.calibration) + sum(own.values()) <= (short.kv_tokens or 0)
    assert not any(call.gap_before_s for program in short.calibration for call in program.calls)


def test_every_load_has_goals(options: DemoOptions) -> None:
    assert {load.name for part in demo_parts(options) for load in part.loads} == set(GOALS)


def test_an_empty_trace_is_refused(options: DemoOptions, tmp_path: Path) -> None:
    trace = tmp_path / "empty.jsonl"
    trace.write_text("")
    with pytest.raises(TraceError, match=r"empty\.jsonl"):
        demo_parts(dataclasses.replace(options, trace=trace))
