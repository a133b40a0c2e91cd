"""The demo's two parts: their programs, loads and engines."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from autellix_lab.cli import demo
from autellix_lab.demo.parts import BLOCK_TOKENS, GOALS, MAX_TOOL_CONTEXT_TOKENS, DemoOptions, demo_parts
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import TraceError


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


def test_the_second_part_is_short_of_memory(options: DemoOptions) -> None:
    """Its contexts are more than twice the memory; each of them fits, with its tools and its gaps."""
    _, short = demo_parts(options)
    prefixes = [prefix for program in short.programs if (prefix := system_prefix(program)) is not None]
    lists = {prefix.key: prefix.length for prefix in prefixes}
    own = [
        program.calls[-1].context_tokens - (program.system_prefix_tokens or 0) for program in short.programs
    ]

    assert short.kv_tokens == (options.kv_blocks - 1) * BLOCK_TOKENS
    assert sum(lists.values()) + sum(own) > 2 * short.kv_tokens
    assert len(prefixes) == len(short.programs) > 3 * len(lists)
    for program in short.programs:
        assert program.calls[-1].context_tokens <= MAX_TOOL_CONTEXT_TOKENS
        assert all(call.prefix_from == call.id - 1 for call in program.calls[1:])
        assert sum(call.gap_before_s or 0.0 for call in program.calls) > 0


def test_calibration_programs_fit_into_short_memory_and_have_no_gaps(options: DemoOptions) -> None:
    _, short = demo_parts(options)
    lists = {program.system_prefix_tokens: program.system_prefix_tokens or 0 for program in short.calibration}
    own = [
        program.calls[-1].context_tokens - (program.system_prefix_tokens or 0)
        for program in short.calibration
    ]

    assert len(short.calibration) == pytest.approx(2 * short.calibration_slots, abs=1)
    assert len(short.calibration) >= options.max_num_seqs
    assert sum(lists.values()) + sum(own) <= (short.kv_tokens or 0)
    assert not any(call.gap_before_s for program in short.calibration for call in program.calls)


def test_every_load_has_goals(options: DemoOptions) -> None:
    assert {load.name for part in demo_parts(options) for load in part.loads} == set(GOALS)


def test_an_empty_trace_is_refused(options: DemoOptions, tmp_path: Path) -> None:
    trace = tmp_path / "empty.jsonl"
    trace.write_text("")
    with pytest.raises(TraceError, match=r"empty\.jsonl"):
        demo_parts(dataclasses.replace(options, trace=trace))
