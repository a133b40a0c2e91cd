"""The count of KV blocks, beside what vLLM's own manager allots in every layout that its registry knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

_WORKER = Path(__file__).with_name("block_layouts.py")
_NOT_PLAYED = {
    # They move between memory and host memory by rules of their own.
    "HiSparseHotSpec",
    "HiSparseResidentSpec",
    # vLLM cannot make its manager: it takes fewer arguments than it is given.
    "SinkFullAttentionSpec",
}

Layouts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    pytest.importorskip("vllm")
    run = subprocess.run([sys.executable, str(_WORKER)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.fixture
def layouts(report: dict[str, Any]) -> Layouts:
    found: Layouts = report["layouts"]
    return found


def test_every_kind_of_layer_is_played(report: dict[str, Any]) -> None:
    assert set(report["missing"]) == _NOT_PLAYED


def test_a_context_counts_as_the_blocks_that_vllm_allots(layouts: Layouts) -> None:
    """At all lengths that a decoded context passes through, in groups that keep it whole or a part of it."""
    wrong = {name: [each for each in found["alone"] if each[1] != each[2]] for name, found in layouts.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_a_beginning_that_calls_share_counts_once(layouts: Layouts) -> None:
    together = {name: found["together"] for name, found in layouts.items() if found["together"]}
    assert all(found["cached"] for found in together.values())
    assert {name: found for name, found in together.items() if found["held"] != found["counted"]} == {}


def test_blocks_that_running_calls_share_are_held_by_the_first(layouts: Layouts) -> None:
    together = {name: found["together"] for name, found in layouts.items() if found["together"]}
    assert {name: found for name, found in together.items() if found["apart"] != found["held"]} == {}
    assert any(found["whole"] > found["held"] for found in together.values())


def test_admission_lets_in_as_many_contexts_as_there_are_blocks_for(layouts: Layouts) -> None:
    for name, found in layouts.items():
        for length, by_blocks, by_tokens in found["fits"]:
            # Where a block is no whole number of tokens, contexts count as up to one token more.
            assert 0.98 * by_blocks < by_tokens <= by_blocks, (name, length)


def test_capacity_is_in_tokens_of_whole_contexts(layouts: Layouts) -> None:
    """Of 4,000 blocks; what grows with a context alone shares them out."""
    capacity = {name: found["capacity"] for name, found in layouts.items()}
    assert capacity["full and states"] == capacity["full, large blocks"] == 4000 * 528
    assert capacity["full and windows"] == capacity["full and chunks"] == capacity["full"] == 4000 * 16
    assert capacity["full with windows"] == capacity["full with chunks"] == capacity["full"]
    assert capacity["full, context parallel"] == 4 * capacity["full"]
    assert capacity["three groups of full"] == capacity["full"] // 3
    unbounded = {name for name, tokens in capacity.items() if tokens is None}
    assert unbounded == {"windows alone", "states alone", "states alone, no cache"}


def test_blocks_are_reported_at_their_worth_in_whole_contexts(layouts: Layouts) -> None:
    """So that all blocks times this number are the tokens that fit."""
    worth = {name: found["block_tokens"] for name, found in layouts.items()}
    assert all(
        worth[name] == found["capacity"] // 4000 for name, found in layouts.items() if found["capacity"]
    )
    assert worth["full and windows, larger blocks"] == worth["full and states, no cache"] == 16


def test_loads_are_priced_by_what_grows_with_a_context(layouts: Layouts) -> None:
    size = {name: found["token_bytes"] for name, found in layouts.items()}
    assert size["full and windows"] == size["full and chunks"] == size["full"]
    assert size["full and states"] == size["full, large blocks"]
    assert size["three groups of full"] == 3 * size["full"]
    assert size["windows alone"] > 0


def test_a_kept_context_is_found_whole(layouts: Layouts) -> None:
    """Also where nothing but the blocks that it counts for are left in the cache."""
    kept = {name: found["kept"] for name, found in layouts.items() if found["kept"]}
    assert {name: found for name, found in kept.items() if found["cached"] != found["whole"]} == {}


def test_a_kept_context_goes_from_its_end_in_all_groups_at_once(layouts: Layouts) -> None:
    for name, found in layouts.items():
        ends = [end for end in found["kept"]["ends"] if end is not None] if found["kept"] else []
        assert ends == sorted(ends, reverse=True), name
    assert layouts["three groups of full"]["kept"]["ends"][-6:] == [32, 32, 32, 16, 16, 16]


def test_a_hybrid_model_runs_as_many_calls_as_under_vllm(tmp_path: Path) -> None:
    """One layer of attention and three with a state, in blocks of 128 tokens."""
    pytest.importorskip("vllm")
    reply = tmp_path / "reply.json"
    with reply.open("w") as out, (tmp_path / "engines.log").open("w") as log:
        command = [sys.executable, "-m", "tests.vllm_plugin.hybrid_engine", str(out.fileno())]
        run = subprocess.run(command, pass_fds=(out.fileno(),), stdout=log, stderr=log, check=False)
    assert run.returncode == 0, (tmp_path / "engines.log").read_text()[-4000:]
    found = json.loads(reply.read_text())
    for prompt, sides in found.items():
        assert sides["ours, all of the memory"]["running"] == sides["stock"]["running"], prompt
        assert sides["ours"]["steps"] <= sides["stock"]["steps"], prompt
        assert not sides["ours"]["is_degraded"], prompt
    # Fifteen or sixteen blocks and three states of each context, in 95 % of 199 blocks.
    assert found["1900"]["stock"]["running"] == 199 // 18
    assert found["1900"]["ours"]["running"] == 189 // 18
    assert found["1900"]["ours"]["preemptions"] == 0 < found["1900"]["stock"]["preemptions"]
    assert found["1900"]["ours"]["kv_tokens"] == 199 * 128
