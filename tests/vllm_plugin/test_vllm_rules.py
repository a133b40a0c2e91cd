"""Our class on vLLM's real scheduler, where vLLM's features have rules of their own; without a model."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autellix_backend.core.names import POLICY_NAMES

# The first test pays for vLLM's imports, on a machine that may be busy.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def play(scenes: Any, scene: str, **options: Any) -> dict[str, Any]:
    """Play a scene of `scheduler_scenes.py`."""
    result: dict[str, Any] = scenes.run({"scene": scene, **options})
    assert "error" not in result, result["error"]
    return result


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
def test_round_robin_rotates_calls_that_decode_with_drafts(scenes: Any, drafts: bool, is_async: bool) -> None:
    """Steps that verify drafts are decode: a call past its quantum gives its slot up."""
    assert play(scenes, "rotation", drafts=drafts, is_async=is_async)["preemptions"] >= 20


@pytest.mark.parametrize("drafts", [False, True])
def test_drafts_change_no_price_and_no_service(scenes: Any, drafts: bool) -> None:
    """Prefill costs 1 ms a token, a call is charged 100 + 20 tokens, and its first step ends its prefill."""
    learned = play(scenes, "prices", drafts=drafts)
    assert learned["recompute_s"] == pytest.approx(0.1)
    assert learned["services_s"] == [pytest.approx(100 * 0.005 + 20 * 0.01)]
    assert learned["prefilled_s"] == [pytest.approx(0.11)]


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_reset_cache_keeps_no_memory_for_idle_programs(scenes: Any, is_ours: bool) -> None:
    """As under vLLM's own scheduler, a call that fits starts with the next step."""
    assert play(scenes, "reset", is_ours=is_ours)["steps"] == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_ours", [False, True])
def test_a_session_between_two_parts_stops_no_other_program(
    scenes: Any, is_ours: bool, is_async: bool
) -> None:
    """Its blocks stay, but no program waits for them if vLLM has enough; its next part starts at once.

    vLLM ends it by an abort, which is none to its client.
    """
    result = play(scenes, "session", is_ours=is_ours, is_async=is_async)
    assert result.pop("ends") == ([["stop", False]] if is_ours else [])
    assert result == {"steps": 1, "is_done": True, "next_part": 3, "left": 0}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("policy", ["boost", "plas", "round_robin"])
@pytest.mark.parametrize("seed", [1, 2])
def test_sessions_may_do_anything_at_any_time(scenes: Any, seed: int, policy: str, is_async: bool) -> None:
    """In each step, our calls wait for their clients where vLLM's requests do; in the end nothing is left."""
    result = play(scenes, "sessions", seed=seed, policy=policy, is_async=is_async)
    assert result["left"] == [0, 0, 0, 0]
    assert result["paused"] > 200
    assert (result["preemptions"] > 10) is (policy != "boost")


@pytest.mark.parametrize(
    ("is_async", "is_pipelined"),
    [(False, False), (True, False), (True, True)],
    ids=["sync", "async", "piped"],
)
@pytest.mark.parametrize("policy", ["boost", "plas", "atlas_dag", "fcfs"])
def test_every_step_is_charged_to_the_calls_in_it(
    scenes: Any, policy: str, is_async: bool, is_pipelined: bool
) -> None:
    """Also to those whose clients vanish before or during it; each is reported once, with all of its steps.

    A step that was scheduled beyond the last token of a call is charged to its program, and is in no report.
    """
    result = play(scenes, "balance", seed=3, policy=policy, is_async=is_async, is_pipelined=is_pipelined)
    assert result["shared_s"] == pytest.approx(result["ran_s"])
    assert result["reports"] == result["calls"]
    assert result["unreported"] == 0
    assert min(result["aborted"].values()) > 10
    if is_pipelined:
        assert 0.9 < result["reported_s"] / result["ran_s"] < 1 + 1e-9
    else:
        assert result["reported_s"] == pytest.approx(result["ran_s"])


def test_calls_that_are_held_back_are_no_lack_of_capacity(scenes: Any) -> None:
    """vLLM counts them as waiting for something else than a slot or a block: prefill balancing stays on."""
    result = play(scenes, "held_back")
    assert result["counts"] == [[3, 0, 5, False], [3, 0, 4, False], [0, 0, 0, False]]
    assert (result["unfinished"], result["deferred"]) == (7, 0)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_call_that_another_engine_has_prefilled_is_not_held_back(scenes: Any, is_remote: bool) -> None:
    """The other engine keeps its blocks until this one has fetched them."""
    assert ("new" in play(scenes, "prefilled_elsewhere", is_remote=is_remote)["ran"]) is is_remote


def test_a_changed_signature_of_vllms_leaves_the_engine_running(scenes: Any) -> None:
    assert play(scenes, "changed_signature") == {"finished": 4, "is_degraded": True}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_release_that_nobody_knows_is_tried_out_and_used(scenes: Any, is_async: bool) -> None:
    found = play(scenes, "on_trial", change="", is_async=is_async)
    assert found.pop("took_s") < 1.0
    assert found == {
        "lines": [
            (
                "Autellix: vLLM 0.99.0 is not one of 0.32, 0.33; it has passed the self-test, "
                "so its calls are ordered"
            )
        ],
        "is_degraded": False,
        "finished": 4,
    }


@pytest.mark.parametrize("kind", ["pooling", "encoder"])
def test_models_that_pool_and_those_with_an_encoder_pass_the_trial(scenes: Any, kind: str) -> None:
    """Whatever the step's budget of the trial is, an input of the encoder fits into that of the engine."""
    found = play(scenes, "on_trial", change="", is_async=False, kind=kind)
    assert (found["is_degraded"], found["finished"]) == (False, 4), found["lines"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("renamed_hook", "lacks _preempt_request"),
        ("renamed_method", "lacks kv_cache_manager.block_pool.get_cached_block"),
        ("required_argument", "missing 1 required keyword-only argument: 'reason'"),
        ("other_return", "'list' object has no attribute 'get_block_ids'"),
        ("other_result", "'list' object has no attribute 'values'"),
        ("other_end", "(call d has left, and is still tracked|KeyError: 'd')"),
        ("own_queue", "vLLM puts another queue in place of waiting"),
        ("kept_progress", "call a reads a wrong token 0 in block"),
        ("blocks_in_part", "call a has no block for token 32"),
        ("renamed_field", "unsupported operand type.* 'method' and 'int'"),
    ],
)
def test_a_release_that_behaves_otherwise_keeps_its_own_order(
    scenes: Any, change: str, said: str, is_async: bool
) -> None:
    """One line says what did not hold; calls end as on any engine."""
    found = play(scenes, "on_trial", change=change, is_async=is_async)
    [line] = found["lines"]
    assert "vLLM 0.99.0" in line
    assert re.search(said, line)
    assert line.endswith("; this engine goes on in vLLM's own order")
    assert (found["is_degraded"], found["finished"]) == (True, 4)


@pytest.mark.parametrize(
    ("is_async", "expected"), [(True, "DiffusionAsyncScheduler"), (False, "DiffusionScheduler")]
)
def test_a_diffusion_model_keeps_vllms_own_scheduler(scenes: Any, is_async: bool, expected: str) -> None:
    """It decodes by canvases, with a scheduler class that vLLM chooses only where none is given."""
    assert play(scenes, "diffusion", is_async=is_async) == {"scheduler": expected}


@pytest.mark.parametrize("policy", ["boost", "plas", "atlas"])
def test_an_event_costs_the_same_however_many_calls_its_program_has(scenes: Any, policy: str) -> None:
    """In vLLM's queues too: an arrival and an end move the program, not its calls."""
    few, many = (play(scenes, "crowd", calls=calls, policy=policy)["work"] for calls in (50, 1000))
    assert many < 1.1 * few


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_requests_is_that_of_their_programs(scenes: Any, seed: int) -> None:
    """Of those that wait, and of those that run, in whose order vLLM picks its own victims."""
    result = play(scenes, "moved", seed=seed)
    assert result["moves"] > 10
    assert result["left"] == 0


def test_no_slot_is_freed_in_a_step_that_begins_no_prefill(scenes: Any) -> None:
    """vLLM may let decode run for some steps without a prefill (`prefill_schedule_interval`)."""
    result = play(scenes, "cadence")
    assert result["preemptions"] >= 10
    assert result["wasted"] == 0


@pytest.mark.parametrize(("busy", "preemptions", "steps"), [(1, 1, 1), (3, 0, None)])
def test_no_call_gives_way_to_one_whose_adapter_finds_no_place(
    scenes: Any, busy: int, preemptions: int, steps: int | None
) -> None:
    """Calls of one LoRA adapter keep the only place for one, unless all of them give way together."""
    assert play(scenes, "adapters", busy=busy) == {"preemptions": preemptions, "steps": steps}


@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize("names", [["a", "b"], [""]])
# The engine has no true sizes.
@pytest.mark.parametrize("policy", sorted(set(POLICY_NAMES) - {"srpt"}))
def test_prompts_that_do_not_fit_together_stop_no_engine(
    scenes: Any, policy: str, names: list[str], has_cache: bool
) -> None:
    """All steps take equally long, so that no preemption has a price in seconds."""
    for options in ({}, {"preemption": "always"}, {"preemption": "never"}, {"admission": "working_set"}):
        steps = play(scenes, "tenants", policy=policy, names=names, has_cache=has_cache, options=options)
        assert steps["ours"] <= 1.5 * steps["stock"], options


@pytest.mark.parametrize(("is_ours", "expected"), [(False, [16, 16, 16]), (True, [16, 584, 1])])
def test_a_prefill_beside_calls_that_are_held_back_has_no_cap(
    scenes: Any, is_ours: bool, expected: list[int]
) -> None:
    """The cap is there for other calls that could run."""
    assert play(scenes, "alone", is_ours=is_ours)["tokens"] == expected


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("budget", [8192, 1])
def test_a_call_that_vllm_skips_costs_others_ever_less(scenes: Any, budget: int, is_async: bool) -> None:
    """A slot is freed for it after 16 steps, then after 32, and so on.

    It makes no difference that the steps spend their whole token budget, or run nothing because the output of
    the preempted call is under way.
    """
    assert play(scenes, "passed_over", steps=600, budget=budget, is_async=is_async)["preemptions"] == 6


def test_no_slot_is_freed_for_a_call_that_vllm_has_just_passed_over(scenes: Any) -> None:
    """Not for 16 steps after vLLM has looked at it, whether or not the slot had been freed for it."""
    early, late = play(scenes, "looked_at")["preemptions"]
    assert early == 0 < late


def test_ended_calls_whose_blocks_a_connector_holds_do_not_wait(scenes: Any) -> None:
    """They want no more memory, so a preemption beside them is as cheap as without them."""
    assert play(scenes, "kept_by_connector") == {"held": [True, True, True, False], "keeps": True}
