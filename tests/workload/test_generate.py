from __future__ import annotations

from statistics import fmean

import pytest

from autellix_backend.workload.fit import fit_program
from autellix_backend.workload.generate import SHAPES, WORKLOADS, generate_programs


@pytest.mark.parametrize("kind", SHAPES)
def test_means_follow_the_paper(kind: str) -> None:
    programs = generate_programs(kind, 600, seed=5)
    calls = [call for program in programs for call in program.calls]
    shape = SHAPES[kind]
    assert shape.calls.mean == pytest.approx(len(calls) / 600, rel=0.1)
    assert shape.prefill_tokens.mean == pytest.approx(fmean(call.new_tokens for call in calls), rel=0.1)
    assert shape.decode_tokens.mean == pytest.approx(fmean(call.decode_tokens for call in calls), rel=0.1)


@pytest.mark.parametrize("kind", SHAPES)
def test_maxima_hold(kind: str) -> None:
    shape = SHAPES[kind]
    for program in generate_programs(kind, 300, seed=6):
        assert 1 <= len(program.calls) <= shape.calls.maximum
        assert all(call.decode_tokens <= shape.decode_tokens.maximum for call in program.calls)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_seed_makes_the_same_programs(workload: str) -> None:
    programs = generate_programs(workload, 9, seed=1)
    assert programs == generate_programs(workload, 9, seed=1)
    assert programs[:4] == generate_programs(workload, 4, seed=1)
    assert programs != generate_programs(workload, 9, seed=2)


def test_mixed_has_equal_shares() -> None:
    sources = [program.source for program in generate_programs("mixed", 9, seed=0)]
    assert {name: sources.count(name) for name in sources} == {
        "generated_chat": 3,
        "generated_react": 3,
        "generated_tree": 3,
    }


def test_a_tree_runs_five_branches_at_once() -> None:
    tree = max(generate_programs("tree", 20, seed=0), key=lambda program: len(program.calls))
    assert tree.is_parallel
    assert sum(not call.parents for call in tree.calls) == 5
    assert max(len(call.parents) for call in tree.calls) == 5


def test_an_unknown_workload_lists_the_known() -> None:
    with pytest.raises(ValueError, match="'poem'; expected one of chat, react, tree, map_reduce, mixed"):
        generate_programs("poem", 1, seed=0)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_fitted_program_keeps_its_graph_within_the_context(workload: str) -> None:
    for program in generate_programs(workload, 40, seed=2):
        fitted = fit_program(program, length_scale=1 / 8, max_context_tokens=512)
        assert [call.parents for call in program.calls] == [call.parents for call in fitted.calls]
        assert all(call.context_tokens <= 512 and call.decode_tokens >= 1 for call in fitted.calls)


def test_fitting_rejects_a_scale_of_zero() -> None:
    with pytest.raises(ValueError, match="length_scale is 0"):
        fit_program(generate_programs("chat", 1, seed=0)[0], length_scale=0, max_context_tokens=512)


def test_a_tree_scale_shrinks_trees_alone() -> None:
    whole, small = (generate_programs("mixed", 60, seed=4, tree_scale=scale) for scale in (1.0, 0.25))
    assert [len(program.calls) for program in small[::3]] == [len(program.calls) for program in whole[::3]]
    calls = [sum(len(program.calls) for program in programs[2::3]) for programs in (whole, small)]
    assert calls[1] == pytest.approx(calls[0] / 4, rel=0.1)
