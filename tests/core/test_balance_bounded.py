"""Pins that yield: when a program moves, when it stays, and the state kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autellix_backend.core.balance import EngineLoad, FinishedCall
from autellix_backend.core.balance.base import ArrivingCall
from autellix_backend.core.balance.bounded import LocalityBounded
from autellix_backend.core.balance.cost import MeanCall, cost_s

IDLE = EngineLoad(
    name="a", running=0, waiting=0, slots=8, prefill_s_per_token=0.0001, decode_s_per_token=0.015
)
OTHER = replace(IDLE, name="b")
MEAN = MeanCall(new_tokens=300.0, output_tokens=200.0, calls_after=4.0)
CONTEXT = 4000


@pytest.fixture
def balancer() -> Iterator[LocalityBounded]:
    """A balancer whose invariants are checked at the end."""
    made = LocalityBounded()
    yield made
    made.check()


def full(load: EngineLoad, waiting: int) -> EngineLoad:
    return replace(load, running=load.slots, waiting=waiting)


def finished(program_id: str, engine: str, prompt_tokens: int, **changes: int) -> FinishedCall:
    return FinishedCall(
        program_id=program_id,
        engine=engine,
        prompt_tokens=prompt_tokens,
        **({"output_tokens": 200} | changes),
    )


# Costs.


def test_a_free_slot_costs_prefill_and_decode_only() -> None:
    cost = cost_s(IDLE, MEAN, 1000)
    assert cost == pytest.approx(1000 * 0.0001 + 200 * 0.015 * (1 + 1 / 8))


def test_a_queue_costs_what_waits_there_and_a_slot_more() -> None:
    at = [cost_s(full(IDLE, waiting), MEAN, 0) for waiting in (0, 4)]
    mean_s = 300 * 0.0001 + 200 * 0.015 / 8
    behind_s = 0.5 * (200 * 0.015 / 8) * 4
    assert at[1] - at[0] == pytest.approx(4 * mean_s + behind_s)


def test_prefill_costs_more_the_more_calls_run() -> None:
    def prefill_s(load: EngineLoad) -> float:
        return cost_s(load, MEAN, 1000) - cost_s(load, MEAN, 0)

    assert prefill_s(IDLE) == pytest.approx(0.1)
    assert prefill_s(replace(IDLE, running=3)) == pytest.approx(0.1 * (1 + 2 * 3))


# Pins.


def test_a_program_stays_with_its_context_although_other_engines_have_fewer_calls(
    balancer: LocalityBounded,
) -> None:
    assert balancer.assign(ArrivingCall("p", CONTEXT), [IDLE, OTHER]) == "a"
    assert balancer.assign(ArrivingCall("p", CONTEXT + 300), [replace(IDLE, running=3), OTHER]) == "a"
    assert (
        balancer.assign(ArrivingCall("p", CONTEXT + 600), [full(IDLE, 3), replace(OTHER, running=5)]) == "a"
    )


def test_a_pin_yields_once_the_queue_costs_more_than_a_prefill_elsewhere(balancer: LocalityBounded) -> None:
    balancer.assign(ArrivingCall("p", CONTEXT), [IDLE, OTHER])

    assert balancer.assign(ArrivingCall("p", CONTEXT), [full(IDLE, 30), OTHER]) == "b"


def test_a_longer_context_justifies_a_longer_queue(balancer: LocalityBounded) -> None:
    def bears(context_tokens: int) -> int:
        for waiting in range(500):
            balancer.forget("p")
            balancer.assign(ArrivingCall("p", context_tokens), [IDLE, OTHER])
            if (
                balancer.assign(
                    ArrivingCall("p", context_tokens), [full(IDLE, waiting), replace(OTHER, running=7)]
                )
                == "b"
            ):
                return waiting
        return 500

    assert bears(1000) < bears(4000) < bears(16000) < 500


def test_a_program_that_moved_needs_a_new_prefill_on_its_old_engine(balancer: LocalityBounded) -> None:
    balancer.assign(ArrivingCall("p", CONTEXT), [IDLE, OTHER])
    assert balancer.assign(ArrivingCall("p", CONTEXT), [full(IDLE, 40), OTHER]) == "b"

    assert balancer.assign(ArrivingCall("p", CONTEXT), [IDLE, replace(OTHER, running=3)]) == "b"


def test_new_programs_go_to_fast_engines_until_those_have_queues(balancer: LocalityBounded) -> None:
    fast = replace(OTHER, prefill_s_per_token=0.00005, decode_s_per_token=0.0075)

    assert balancer.assign(ArrivingCall("p", 500), [IDLE, replace(fast, running=5)]) == "b"
    assert balancer.assign(ArrivingCall("q", 500), [IDLE, full(fast, 8)]) == "a"


def test_a_pinned_program_leaves_a_slow_engine_for_an_idle_fast_one(balancer: LocalityBounded) -> None:
    fast = replace(OTHER, prefill_s_per_token=0.00003, decode_s_per_token=0.004)
    balancer.assign(ArrivingCall("p", CONTEXT), [IDLE, full(fast, 40)])

    assert balancer.assign(ArrivingCall("p", CONTEXT), [IDLE, fast]) == "b"


def test_contexts_are_spread_over_the_memory_of_engines(balancer: LocalityBounded) -> None:
    """Two of them count as full, and the engine with the faster prefill is filled first."""
    slow = replace(IDLE, running=5, kv_tokens=2 * CONTEXT / 0.8)
    fast = replace(OTHER, running=5, kv_tokens=2 * CONTEXT / 0.8, prefill_s_per_token=0.00008)

    chosen = [balancer.assign(ArrivingCall(f"p{number}", CONTEXT), [slow, fast]) for number in range(4)]

    assert chosen == ["b", "b", "a", "a"]


def test_contexts_are_not_kept_for_programs_that_make_one_call(balancer: LocalityBounded) -> None:
    """Contexts without a later call may be evicted: then the faster engine gets more than fits."""
    slow = replace(IDLE, running=5, kv_tokens=2 * CONTEXT / 0.8)
    fast = replace(OTHER, running=5, kv_tokens=2 * CONTEXT / 0.8, prefill_s_per_token=0.00008)
    for number in range(300):
        balancer.assign(ArrivingCall(f"old{number}", CONTEXT), [slow, fast])
        balancer.forget(f"old{number}")

    chosen = [balancer.assign(ArrivingCall(f"p{number}", CONTEXT), [slow, fast]) for number in range(4)]

    assert chosen == ["b", "b", "b", "b"]


def test_answers_count_as_context(balancer: LocalityBounded) -> None:
    """The next prompt contains the answer, which is cached where it was decoded."""
    roomy, tight = replace(IDLE, kv_tokens=9000), replace(OTHER, kv_tokens=9000, decode_s_per_token=0.0151)
    balancer.assign(ArrivingCall("p", 1000), [roomy, tight])
    assert balancer.assign(ArrivingCall("q", 5000), [roomy, tight]) == "a"

    balancer.forget("q")
    balancer.finished(finished("p", "a", 1000, output_tokens=7000))

    assert balancer.assign(ArrivingCall("q", 5000), [roomy, tight]) == "b"


def test_long_answers_are_learned(balancer: LocalityBounded) -> None:
    """With long answers, decode speed outweighs prefill speed."""
    slow_writer = replace(IDLE, decode_s_per_token=0.02, prefill_s_per_token=0.00001)
    slow_reader = replace(OTHER, decode_s_per_token=0.018, prefill_s_per_token=0.001)
    assert balancer.assign(ArrivingCall("p", 2000), [slow_writer, slow_reader]) == "a"

    for _ in range(200):
        balancer.finished(finished("other", "a", 1000, output_tokens=5000, cached_tokens=0))

    assert balancer.assign(ArrivingCall("q", 2000), [slow_writer, slow_reader]) == "b"


def test_a_joining_engine_gets_the_next_program(balancer: LocalityBounded) -> None:
    for number in range(8):
        balancer.assign(ArrivingCall(f"p{number}", 500), [replace(IDLE, running=number)])

    assert balancer.assign(ArrivingCall("new", 500), [full(IDLE, 2), OTHER]) == "b"
