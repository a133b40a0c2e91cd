"""The demo's two parts: their programs, loads and engines."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.cli import demo
from autellix_lab.demo.parts import (
    BLOCK_TOKENS,
    GOALS,
    MAX_SCARCE_CONTEXT_TOKENS,
    MIN_FITTING,
    MIN_KV_BLOCKS,
    SCARCE,
    DemoOptions,
    Part,
    demo_parts,
)
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import SHAPES, generate_programs, generate_shaped
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import ProgramTrace, TraceError
from autellix_lab.workload.trace_files import write_traces


@pytest.fixture(scope="module")
def options() -> DemoOptions:
    """Return the command's defaults."""
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    args = parser.parse_args([])
    return demo.options_of(args)


def test_mixed_programs_have_scarce_slots(options: DemoOptions) -> None:
    _, slots = demo_parts(options)
    assert slots.kv_tokens is None
    assert len(slots.load.programs) == 39
    assert slots.load.rho > 1
    assert {program.source for program in slots.load.programs} == {
        f"generated_{kind}" for kind in ("chat", "react", "tree")
    }


@pytest.fixture(scope="module", params=SCARCE)
def memory(request: pytest.FixtureRequest, options: DemoOptions) -> Part:
    """Return the part with scarce KV memory with each of its workloads."""
    return demo_parts(dataclasses.replace(options, kv_workload=request.param))[0]


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


def test_contexts_are_more_than_twice_the_memory_and_each_of_them_fits(memory: Part) -> None:
    programs, kv_tokens = memory.load.programs, memory.kv_tokens or 0
    blocks = {scale.title: scale.kv_blocks for scale in SCARCE.values()}
    assert kv_tokens == (blocks[memory.title] - 1) * BLOCK_TOKENS
    assert prefix_tokens(programs) + sum(own_tokens(programs).values()) > 2 * kv_tokens
    for program in programs:
        assert max(call.context_tokens for call in program.calls) <= MAX_SCARCE_CONTEXT_TOKENS
    repeated = sum(call.shared_prefix_tokens for program in programs for call in program.calls)
    prompts = sum(call.prefill_tokens for program in programs for call in program.calls)
    assert repeated / prompts > 0.85
    assert sum(call.gap_before_s or 0.0 for program in programs for call in program.calls) > 0


def test_coding_sessions_keep_the_ratios_of_recorded_ones(options: DemoOptions) -> None:
    """A fiftieth of Llama 3.1 70B on four A100: contexts, memory, outputs and what the sessions share."""
    memory = demo_parts(dataclasses.replace(options, kv_workload="coding"))[0]
    full = [
        fit_program(program, length_scale=1.0, max_context_tokens=200_000)
        for program in generate_shaped("coding", SHAPES["coding"], 100, options.seed)
    ]
    gpu = PRESETS["llama3.1-70b-4xa100"]
    gpu_tokens = gpu.block_tokens * (gpu.kv_blocks or 0)

    def ratios(programs: Sequence[ProgramTrace], kv_tokens: int) -> tuple[float, ...]:
        calls = [call for program in programs for call in program.calls]
        prompt = fmean(call.prefill_tokens for call in calls)
        shared = programs[0].system_prefix_tokens or 0
        return prompt / fmean(call.decode_tokens for call in calls), kv_tokens / prompt, shared / prompt

    found = ratios(memory.load.programs, memory.kv_tokens or 0)
    assert found == pytest.approx(ratios(full, gpu_tokens), rel=0.2)
    assert memory.kv_tokens == pytest.approx(gpu_tokens / 50, rel=0.01)


def test_24_coding_sessions_hold_three_to_six_times_the_memory_at_once(options: DemoOptions) -> None:
    """Simulated under fcfs, at about the rate that the demo measures."""
    memory = demo_parts(dataclasses.replace(options, kv_workload="coding", kv_programs=24))[0]
    programs, kv_tokens = memory.load.programs, memory.kv_tokens or 0
    model = EngineModel(
        max_num_seqs=options.max_num_seqs,
        step_s=0.004,
        decode_s=0.0004,
        prefill_s=0.00006,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=kv_tokens // BLOCK_TOKENS,
    )
    arrivals_s = poisson_arrivals(len(programs), 15.0, options.seed)
    arrivals = zip(arrivals_s, programs, strict=True)
    records = simulate(arrivals, SimSettings(model=model, scheduler=SchedulerConfig(policy="fcfs"))).programs
    own = own_tokens(programs)
    alive = [
        sum(own[other.program_id] for other in records if other.arrival_s <= at < other.finish_s)
        for at in arrivals_s
    ]

    assert {program.source for program in programs} == {"generated_coding"}
    assert 3 <= (prefix_tokens(programs) + max(alive)) / kv_tokens <= 6


def test_few_blocks_shorten_the_contexts(options: DemoOptions) -> None:
    """vLLM refuses a context that is longer than its memory."""
    memory = demo_parts(dataclasses.replace(options, kv_blocks=MIN_KV_BLOCKS))[0]
    longest = max(call.context_tokens for program in memory.load.programs for call in program.calls)
    assert longest < (memory.kv_tokens or 0)


def test_calibration_programs_fit_into_memory_and_have_no_gaps(memory: Part) -> None:
    own = own_tokens(memory.calibration)

    assert len(memory.calibration) == pytest.approx(2 * memory.calibration_slots, abs=1)
    assert len(memory.calibration) >= MIN_FITTING
    assert prefix_tokens(memory.calibration) + sum(own.values()) <= (memory.kv_tokens or 0)
    assert not any(call.gap_before_s for program in memory.calibration for call in program.calls)


def test_every_part_has_goals(options: DemoOptions) -> None:
    assert {part.load.name for part in demo_parts(options)} == set(GOALS)


def test_programs_of_a_trace_have_scarce_slots(options: DemoOptions, tmp_path: Path) -> None:
    trace = tmp_path / "own.jsonl"
    write_traces(trace, generate_programs("chat", 3, seed=1))
    slots = demo_parts(dataclasses.replace(options, trace=trace))[1]
    assert slots.title == "programs of own.jsonl"
    assert len(slots.load.programs) == 3


def test_an_empty_trace_is_refused(options: DemoOptions, tmp_path: Path) -> None:
    trace = tmp_path / "empty.jsonl"
    trace.write_text("")
    with pytest.raises(TraceError, match=r"empty\.jsonl"):
        demo_parts(dataclasses.replace(options, trace=trace))
