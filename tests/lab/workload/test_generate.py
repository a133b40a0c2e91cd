"""Generated programs: the paper's statistics, seeds, and the shape of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from tests.lab.workload.public_data import public_trace

from autellix_lab.workload.builders import COMPACT_TOKENS
from autellix_lab.workload.describe import PAPER_ROWS, Statistics, describe
from autellix_lab.workload.generate import (
    CODING_PREFIX_TOKENS,
    MIXED,
    SHAPES,
    TOOL_LIST_TOKENS,
    TOOL_LISTS,
    WORKLOADS,
    generate_programs,
    generate_shaped,
)
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import read_traces

MANY = {"chat": 4000, "react": 4000, "tree": 500, "map_reduce": 4000, "tools": 4000, "coding": 1000}


@cache
def many(kind: str) -> Sequence[ProgramTrace]:
    return generate_programs(kind, MANY[kind], seed=5)


@cache
def statistics(kind: str) -> Statistics:
    return describe(many(kind))


@pytest.mark.parametrize("kind", PAPER_ROWS)
def test_means_are_those_of_the_paper(kind: str) -> None:
    """Calls per program, new prompt tokens and decode tokens, within 5 %."""
    row, found = PAPER_ROWS[kind], statistics(kind)

    assert row.calls_per_program == pytest.approx(found.calls_per_program, rel=0.05)
    assert row.new_prefill_tokens == pytest.approx(found.new_prefill_tokens, rel=0.05)
    assert row.decode_tokens == pytest.approx(found.decode_tokens, rel=0.05)


@pytest.mark.parametrize("kind", MANY)
def test_the_most_calls_are_reached_and_never_exceeded(kind: str) -> None:
    """Where the paper gives a maximum it is the one."""
    row = PAPER_ROWS.get(kind)
    if row is not None and row.calls_max is not None:
        assert row.calls_max == SHAPES[kind].calls.maximum

    assert SHAPES[kind].calls.maximum == statistics(kind).calls_max


@pytest.mark.parametrize("kind", SHAPES)
def test_no_answer_is_longer_than_its_maximum(kind: str) -> None:
    for program in generate_programs(kind, 100, seed=6):
        assert all(call.decode_tokens <= SHAPES[kind].decode_tokens.maximum for call in program.calls)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_seed_makes_the_same_programs(workload: str) -> None:
    programs = generate_programs(workload, 9, seed=1)
    assert programs == generate_programs(workload, 9, seed=1)
    assert programs[:4] == generate_programs(workload, 4, seed=1)
    assert programs != generate_programs(workload, 9, seed=2)


def test_mixed_has_equal_shares_of_the_paper_s_three() -> None:
    sources = [program.source for program in generate_programs("mixed", 9, seed=0)]
    assert {name: sources.count(name) for name in sources} == {f"generated_{kind}": 3 for kind in MIXED}


def test_a_tree_samples_five_answers_to_one_prompt() -> None:
    """A round's samples run at once and repeat the first's prompt; the next round waits for all."""
    tree = max(generate_programs("tree", 20, seed=0), key=lambda program: len(program.calls))
    samples = tree.calls[:5]

    assert all(not call.parents for call in samples)
    assert {call.sample_group for call in samples} == {0}
    assert {call.prefill_tokens for call in samples} == {samples[0].prefill_tokens}
    assert {call.new_tokens for call in samples[1:]} == {7}
    assert max(len(call.parents) for call in tree.calls) == 5


def test_every_branch_of_a_tree_is_waited_for() -> None:
    """Only calls of the last round have no child."""
    for tree in generate_programs("tree", 30, seed=3):
        awaited = {parent for call in tree.calls for parent in call.parents}
        loose = [call for call in tree.calls if call.id not in awaited]
        assert all(call.id >= len(tree.calls) - 11 for call in loose)


def test_trees_are_shaped_like_lats() -> None:
    """Width, calls per level and the shared part of prompts are near those of the LATS model on HotpotQA."""
    lats, found = describe(read_traces(public_trace("lats_hotpot_model"))), statistics("tree")

    assert lats.width == pytest.approx(found.width, rel=0.05)
    assert lats.calls_per_program / lats.depth == pytest.approx(
        found.calls_per_program / found.depth, rel=0.1
    )
    assert 1 - lats.new_prefill_tokens / lats.prompt_tokens == pytest.approx(
        1 - found.new_prefill_tokens / found.prompt_tokens, rel=0.05
    )


def test_a_tree_scale_shrinks_trees_alone() -> None:
    whole, small = (generate_programs("mixed", 60, seed=4, tree_scale=scale) for scale in (1.0, 0.25))
    assert [len(program.calls) for program in small[::3]] == [len(program.calls) for program in whole[::3]]
    calls = [sum(len(program.calls) for program in programs[2::3]) for programs in (whole, small)]
    assert calls[1] == pytest.approx(calls[0] / 4, rel=0.1)


def test_map_reduce_plans_maps_and_reduces() -> None:
    """Maps run at once after the plan, and the reduce reads all their answers."""
    for program in generate_programs("map_reduce", 50, seed=1):
        plan, *maps, reduce = program.calls

        assert len(maps) >= 2
        assert all(call.parents == (plan.id,) for call in maps)
        assert tuple(call.id for call in maps) == reduce.parents
        assert sum(call.decode_tokens for call in maps) == reduce.new_tokens


def test_map_reduce_has_its_documented_statistics() -> None:
    """18 calls a program; the reduces' reading makes the mean prompt longer than a map's."""
    found = statistics("map_reduce")

    assert found.calls_per_program == pytest.approx(18, rel=0.05)
    assert found.decode_tokens == pytest.approx(160, rel=0.05)
    assert found.new_prefill_tokens == pytest.approx(1110, rel=0.05)
    assert (found.parallel_share, found.depth) == (1.0, 3.0)


def test_tools_are_shaped_like_bfcl() -> None:
    """Calls, answers and the list of tools are near those of the recorded tasks."""
    recorded = read_traces(public_trace("bfcl_gt"))
    bfcl, found = describe(recorded), statistics("tools")

    assert bfcl.calls_per_program == pytest.approx(found.calls_per_program, rel=0.05)
    assert bfcl.decode_tokens == pytest.approx(found.decode_tokens, rel=0.05)
    lists = [program.system_prefix_tokens or 0 for program in recorded]
    assert sum(lists) / len(lists) == pytest.approx(TOOL_LIST_TOKENS.mean, rel=0.05)


def test_tools_share_lists_and_wait_for_each_tool() -> None:
    programs = generate_programs("tools", 60, seed=1)
    assert 1 < len({program.system_prefix_tokens for program in programs}) <= TOOL_LISTS
    for program in programs:
        assert program.calls[0].prefill_tokens > (program.system_prefix_tokens or 0) > 0
        assert program.calls[0].gap_before_s is None
        assert all((call.gap_before_s or 0) > 0 for call in program.calls[1:])


def test_coding_sessions_are_shaped_like_recorded_ones() -> None:
    """Calls, answers, new tokens and the shared instructions are near those of Claude Code.

    Recorded prompts are longer, because some sessions have windows of a million tokens.
    """
    recorded = read_traces(public_trace("claude_code"))
    real, found = describe(recorded), statistics("coding")

    assert real.calls_per_program == pytest.approx(found.calls_per_program, rel=0.1)
    assert real.decode_tokens == pytest.approx(found.decode_tokens, rel=0.05)
    assert 0.6 * real.prompt_tokens < found.prompt_tokens < real.prompt_tokens
    prefixes = [program.system_prefix_tokens or 0 for program in recorded]
    assert sum(prefixes) / len(prefixes) == pytest.approx(CODING_PREFIX_TOKENS, rel=0.05)
    shared = 1 - found.new_prefill_tokens / found.prompt_tokens
    assert 1 - real.new_prefill_tokens / real.prompt_tokens == pytest.approx(shared, abs=0.03)


def test_coding_sessions_compact_their_history() -> None:
    """No context is far above the bound, and the call after a compaction repeats the instructions alone."""
    compacted = 0
    for program in generate_programs("coding", 100, seed=1):
        for last, call in pairwise(program.calls):
            is_full = last.context_tokens >= COMPACT_TOKENS
            compacted += is_full
            assert call.parents == (last.id,)
            assert (call.gap_before_s or 0) > 0
            expected = CODING_PREFIX_TOKENS if is_full else last.context_tokens
            assert call.shared_prefix_tokens == expected
    assert compacted > 0


def test_other_statistics_replace_those_of_a_kind() -> None:
    shape = SHAPES["coding"]
    assert generate_shaped("coding", shape, 5, seed=3) == generate_programs("coding", 5, seed=3)
    few = generate_shaped("coding", replace(shape, calls=shape.calls.scaled(0.1)), 400, seed=3)
    assert max(len(program.calls) for program in few) == round(shape.calls.maximum * 0.1)


def test_an_unknown_workload_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match="'poem'; expected one of chat, react, tree, map_reduce, tools, coding, mixed"
    ):
        generate_programs("poem", 1, seed=0)
