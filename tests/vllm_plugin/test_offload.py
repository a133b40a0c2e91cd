"""KV offload inside real vLLM engines: preempted calls resume from host memory with the same outputs."""

from __future__ import annotations

import random
from typing import Any

import pytest

# The first test pays for vLLM's imports, on a machine that may be busy.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

# The worker's clock counts looks at it as milliseconds: a step costs a few of them.
SCHEDULER = {"policy": "atlas", "bounds": [0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25], "beta": 1.0}
PLENTY_BYTES = 64 << 20
LITTLE_BYTES = 16 << 16

Scenario = dict[str, Any]


def make_conversations(seed: int = 2, programs: int = 9, turns: int = 5) -> list[Scenario]:
    """Programs whose calls each repeat the prompt before, with other work in between."""
    generator = random.Random(seed)
    calls = []
    for program in range(programs):
        prompt: list[int] = []
        for turn in range(turns):
            prompt = prompt + [generator.randrange(2, 512) for _ in range(34)]
            calls.append(
                {
                    "id": f"call-{program}-{turn}",
                    "step": 4 * program + 60 * turn,
                    "prompt": prompt,
                    "max_tokens": 16,
                    "extra_args": {"autellix_program": f"program-{program}"},
                }
            )
    return calls


def make_calls(seed: int = 1, count: int = 64) -> list[Scenario]:
    """Calls of several programs, more than slots and KV blocks can hold, long enough for whole blocks."""
    generator = random.Random(seed)
    return [
        {
            "id": f"call-{number}",
            "step": generator.randrange(0, 150),
            "prompt": [generator.randrange(2, 512) for _ in range(generator.choice([20, 40, 70, 100]))],
            "max_tokens": generator.choice([16, 32, 48, 64]),
            "extra_args": {"autellix_program": f"program-{generator.randrange(12)}"},
        }
        for number in range(count)
    ]


def scenario(**changes: Any) -> Scenario:
    """A small engine under more work than it holds, with host memory for all of it."""
    base: Scenario = {
        "scheduler": "autellix",
        "calls": make_calls(),
        "max_num_seqs": 4,
        "kv_blocks": 18,
        "is_async": False,
        # Without the engine's own prefix cache each return needs a load, or all of the prompt again.
        "has_prefix_caching": False,
        "additional_config": {"autellix": {"scheduler": SCHEDULER}},
        "kv_host_bytes": PLENTY_BYTES,
    }
    return base | changes


@pytest.fixture(scope="module")
def expected(engine_worker: Any) -> Scenario:
    """The outputs of vLLM's own first come, first served, without offload."""
    run: Scenario = engine_worker.run(scenario(scheduler="stock", additional_config={}, kv_host_bytes=None))
    assert "error" not in run, run["error"]
    outputs: Scenario = run["outputs"]
    return outputs


def assert_clean(run: Scenario, *, is_host_degraded: bool = False) -> None:
    """Nothing may be left in the engine, the machine or the connector."""
    assert "error" not in run, run["error"]
    assert run["is_degraded"] is False
    assert (run["leaked_blocks"], run["requests_left"], run["calls_left"]) == (0, 0, 0)
    assert run["swap_calls_left"] == 0
    assert run["is_host_degraded"] is is_host_degraded


@pytest.mark.parametrize("is_async", [False, True])
def test_preempted_calls_resume_from_host_memory(
    engine_worker: Any, expected: Scenario, is_async: bool
) -> None:
    """Two hundred and fifty preemptions, most of them undone by a load, change no greedy token."""
    run = engine_worker.run(scenario(is_async=is_async))
    assert_clean(run)
    assert expected == run["outputs"]
    assert run["slot_preemptions"] + run["block_preemptions"] >= 250
    assert run["swap"]["jobs.load"] >= 200
    assert run["swap"]["bytes.load"] == run["offload_totals"]["loaded_bytes"] > 0
    assert run["swap"]["bytes.store"] == run["offload_totals"]["stored_bytes"] > 0
    assert run["swap"]["hit_chunks"] == run["offload_totals"]["hit_chunks"] > 0
    assert run["swap"].get("failures.load", 0) + run["swap"].get("failures.store", 0) == 0


@pytest.mark.parametrize("direction", ["load", "store"])
def test_dropped_transfers_show(engine_worker: Any, expected: Scenario, direction: str) -> None:
    """The comparison can fail: transfers that move nothing give other outputs."""
    run = engine_worker.run(scenario(swap_faults={"drop": direction}))
    assert_clean(run)
    assert expected != run["outputs"]


@pytest.mark.parametrize(("direction", "every"), [("load", 2), ("load", 1), ("store", 2), ("store", 1)])
def test_failed_transfers_are_tried_again_or_computed(
    engine_worker: Any, expected: Scenario, direction: str, every: int
) -> None:
    """Where every second try fails, all are done in the end; where each does, all is computed."""
    run = engine_worker.run(scenario(swap_faults={"fail": direction, "every": every}))
    assert_clean(run)
    assert expected == run["outputs"]
    assert run["swap"][f"retries.{direction}"] > 0
    if every == 1:
        assert run["swap"][f"failures.{direction}"] > 0
        assert run["swap"].get("jobs.load", 0) == 0


def test_little_host_memory_is_shared_by_eviction(engine_worker: Any, expected: Scenario) -> None:
    """With room for a few blocks some are evicted, and what is gone is computed."""
    run = engine_worker.run(scenario(kv_host_bytes=LITTLE_BYTES))
    assert_clean(run)
    assert expected == run["outputs"]
    assert run["swap"]["evicted_chunks"] > 0


@pytest.mark.parametrize(
    "faults",
    [{"begin_call": 9}, {"use": 20}, {"add": 30}, {"worst_first": 3}, {"discard": 5}, {"end_call": 4}],
)
def test_a_fault_in_the_order_of_host_memory_leaves_the_engine_running(
    engine_worker: Any, expected: Scenario, faults: dict[str, int]
) -> None:
    """Host memory goes on, oldest first, and every call is answered as without it."""
    run = engine_worker.run(scenario(kv_host_bytes=LITTLE_BYTES, retention_faults=faults))
    assert_clean(run, is_host_degraded=True)
    assert expected == run["outputs"]
    assert run["swap"]["evicted_chunks"] > 0
    assert run["swap"]["jobs.store"] > 0


@pytest.mark.parametrize("seed", range(12))
def test_blocks_are_restored_byte_for_byte(engine_worker: Any, seed: int) -> None:
    """For caches of any layout, one group of layers or two, and chunks of one block or more."""
    reply = engine_worker.run({"compare_swaps": seed})
    assert reply.get("moved", 0) > 0, reply


def run_admitting(engine_worker: Any, **changes: Any) -> Scenario:
    """Run conversations with admission and host memory together; no greedy token may change."""
    changes = {"calls": make_conversations(), "has_prefix_caching": True} | changes
    stock: Scenario = {"scheduler": "stock", "additional_config": {}, "kv_host_bytes": None}
    outputs = engine_worker.run(scenario(**changes | stock))["outputs"]
    admitting = {"autellix": {"scheduler": {"policy": "boost", "admission": "working_set"}}}
    run: Scenario = engine_worker.run(scenario(**changes, additional_config=admitting))
    assert_clean(run)
    assert outputs == run["outputs"]
    return run


@pytest.mark.parametrize("is_async", [False, True])
def test_programs_that_were_not_active_load_their_contexts(engine_worker: Any, is_async: bool) -> None:
    """What waits is evicted, and resumes from host memory."""
    run = run_admitting(engine_worker, is_async=is_async)
    assert run["held_back"] > 5
    assert run["swap"]["jobs.load"] > 5
