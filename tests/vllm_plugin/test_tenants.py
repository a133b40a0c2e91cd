"""Tenants share real vLLM engines: one with a fresh program for each call, one with a single long program."""

from __future__ import annotations

import random
from typing import Any

import pytest

# The first test pays for vLLM's imports, on a machine that may be busy.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

# Service by tokens, so that nothing depends on the machine: a call comes to 0.03 to 0.1 s, and tenants take
# turns of fifteen tokens.
SCHEDULER = {
    "policy": "plas",
    "bounds": [0.1, 0.2, 0.4, 0.8],
    "quanta": [0.03] * 5,
    "demotes": False,
    "preemption": "always",
    "beta": "inf",
    "service": "tokens",
    "token_s": 0.001,
}
SLOTS = 4
CALLS_EACH = 45


def make_calls(*, has_tenants: bool, weights: tuple[float, float] = (1.0, 1.0)) -> list[dict[str, Any]]:
    """Calls that each are a program, and parallel calls of one program: either kind is too much alone."""
    generator = random.Random(5)
    owners = ["flood", "long"] * CALLS_EACH
    generator.shuffle(owners)
    calls = []
    for number, owner in enumerate(owners):
        extra_args: dict[str, Any] = {
            "autellix_program": "long" if owner == "long" else f"flood-{number}",
            "autellix_service_s": 0.0,
        }
        if has_tenants:
            extra_args["autellix_tenant"] = owner
            extra_args["autellix_weight"] = weights[owner == "long"]
        calls.append(
            {
                "id": f"{owner}-{number}",
                "step": 2 * number,
                "prompt": [generator.randrange(2, 512) for _ in range(generator.choice([5, 20, 40]))],
                "max_tokens": generator.choice([12, 20, 28]),
                "extra_args": extra_args,
            }
        )
    return calls


def play(engine_worker: Any, calls: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """Run the calls on an engine with a few slots and enough KV blocks for them."""
    scenario = {
        "scheduler": "autellix",
        "calls": calls,
        "max_num_seqs": SLOTS,
        "kv_blocks": 64,
        "is_async": True,
        "has_prefix_caching": True,
        "additional_config": {"autellix": {"scheduler": SCHEDULER}},
    }
    run: dict[str, Any] = engine_worker.run(scenario | changes)
    assert "error" not in run, run["error"]
    return run


def share_of_long(run: dict[str, Any]) -> float:
    """Return the long program's part of the first half of all tokens, when both have calls waiting."""
    owners: list[str] = run["token_owners"][: len(run["token_owners"]) // 2]
    return sum(owner.startswith("long") for owner in owners) / len(owners)


@pytest.fixture(scope="module")
def expected(engine_worker: Any) -> Any:
    """What vLLM's own scheduler answers, first come, first served."""
    return play(engine_worker, make_calls(has_tenants=False), scheduler="stock", additional_config={})[
        "outputs"
    ]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_tenant_with_fresh_programs_gets_its_share_and_no_more(
    engine_worker: Any, expected: Any, is_async: bool
) -> None:
    run = play(engine_worker, make_calls(has_tenants=True), is_async=is_async)

    assert not run["is_degraded"]
    assert 0.45 <= share_of_long(run) <= 0.55
    assert run["outputs"] == expected
    assert run["slot_preemptions"] > 0
    assert (run["calls_left"], run["tenants_left"], run["leaked_blocks"]) == (0, 0, 0)


def test_without_tenants_fresh_programs_go_first(engine_worker: Any, expected: Any) -> None:
    """The effect of the share: the same calls without tenants, for comparison."""
    run = play(engine_worker, make_calls(has_tenants=False))

    assert share_of_long(run) < 0.25
    assert run["outputs"] == expected


@pytest.mark.parametrize("period_steps", [1, 4])
def test_memory_is_shared_where_it_is_scarce(engine_worker: Any, expected: Any, period_steps: int) -> None:
    """With blocks for fewer calls than slots, and with decisions every few steps."""
    scheduler = SCHEDULER | {"period_steps": period_steps}
    run = play(
        engine_worker,
        make_calls(has_tenants=True),
        max_num_seqs=2 * SLOTS,
        kv_blocks=9,
        additional_config={"autellix": {"scheduler": scheduler}},
    )

    assert 0.4 <= share_of_long(run) <= 0.6
    assert run["outputs"] == expected
    assert run["block_preemptions"] > 0
    assert not run["is_degraded"]
