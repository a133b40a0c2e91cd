"""Which engine the routers of others choose."""

from __future__ import annotations

from collections import Counter

import pytest

from autellix_backend.core.balance import EngineLoad, FinishedCall
from autellix_backend.core.errors import NoEngineError, UnknownBalancerError
from autellix_lab.sim.baselines.balancers import RIVAL_BALANCER_NAMES, TracedCall, make_balancer


def engines(calls: dict[str, int], *, kv_tokens: float = 100_000, running: int = 0) -> list[EngineLoad]:
    return [
        EngineLoad(
            name=name,
            running=running,
            waiting=waiting,
            slots=4,
            prefill_s_per_token=0.001,
            decode_s_per_token=0.01,
            kv_tokens=kv_tokens,
        )
        for name, waiting in calls.items()
    ]


def call(
    program: str, tokens: int, *, repeated: int = 0, prefix: str = "", prefix_tokens: int = 0
) -> TracedCall:
    return TracedCall(program, tokens, prefix, repeated_tokens=repeated, prefix_tokens=prefix_tokens)


@pytest.mark.parametrize("name", RIVAL_BALANCER_NAMES)
def test_only_an_engine_that_accepts_and_can_answer_is_chosen(name: str) -> None:
    balancer, loads = make_balancer(name, 0), engines({"a": 0, "b": 5, "c": 9})
    for number in range(8):
        one = TracedCall(str(number), 100, among=("b", "c"))
        assert balancer.assign(one, loads[:2]) == "b"
    with pytest.raises(NoEngineError):
        balancer.assign(TracedCall("p", 1, among=("c",)), loads[:2])


@pytest.mark.parametrize("name", RIVAL_BALANCER_NAMES)
def test_equal_calls_have_equal_engines_in_each_run(name: str) -> None:
    loads = engines({"a": 1, "b": 1, "c": 1, "d": 1})

    def play() -> list[str]:
        balancer = make_balancer(name, 0)
        return [balancer.assign(call(str(number), 100 * number + 1), loads) for number in range(30)]

    assert play() == play()
    assert len(set(play())) > 1


def test_the_product_s_balancers_have_their_names_too() -> None:
    assert make_balancer("round_robin", 0).name == "round_robin"
    with pytest.raises(UnknownBalancerError):
        make_balancer("random", 0)


def test_power_of_two_never_sends_to_the_fullest_of_three() -> None:
    balancer, loads = make_balancer("power_of_two", 0), engines({"a": 2, "b": 1, "c": 0})
    chosen = Counter(balancer.assign(call("p", 100), loads) for _ in range(300))
    assert chosen["a"] == 0
    assert chosen["c"] > chosen["b"] > 60


def test_a_session_keeps_its_engine_and_few_move_when_one_joins() -> None:
    balancer = make_balancer("session_hash", 0)
    programs = [call(str(number), 100) for number in range(400)]
    two, three = engines({"a": 9, "b": 0}), engines({"a": 0, "b": 0, "c": 0})
    before = [balancer.assign(each, two) for each in programs]
    after = [balancer.assign(each, three) for each in programs]
    assert before == [balancer.assign(each, two) for each in programs]
    assert min(Counter(before).values()) > 100
    moved = {new for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {"c"}
    assert min(Counter(after).values()) > 60


def test_cache_aware_follows_the_longest_beginning_that_it_sent() -> None:
    balancer, loads = make_balancer("cache_aware", 0), engines({"a": 0, "b": 0})
    assert balancer.assign(call("one", 1000), loads) == "a"
    assert balancer.assign(call("two", 100), loads) == "b"
    assert balancer.assign(call("two", 300, repeated=100), loads) == "b"
    # A third and no more of it is known: it goes where less was sent.
    assert balancer.assign(call("one", 4000, repeated=1000), loads) == "b"


def test_cache_aware_finds_the_prefix_of_another_program() -> None:
    balancer, loads = make_balancer("cache_aware", 0), engines({"a": 0, "b": 0})
    assert balancer.assign(call("one", 1000, prefix="tools", prefix_tokens=800), loads) == "a"
    assert balancer.assign(call("two", 1000, prefix="tools", prefix_tokens=800), loads) == "a"
    assert balancer.assign(call("three", 1000, prefix="others", prefix_tokens=800), loads) == "b"


def test_cache_aware_sends_to_the_fewest_calls_where_two_engines_differ_too_much() -> None:
    balancer = make_balancer("cache_aware", 0)
    assert balancer.assign(call("one", 1000), engines({"a": 0, "b": 0})) == "a"
    assert balancer.assign(call("one", 1100, repeated=1000), engines({"a": 64, "b": 0})) == "a"
    assert balancer.assign(call("one", 1200, repeated=1100), engines({"a": 195, "b": 130})) == "a"
    assert balancer.assign(call("one", 1300, repeated=1200), engines({"a": 65, "b": 0})) == "b"


def test_cache_aware_forgets_the_text_that_was_used_longest_ago() -> None:
    balancer, loads = make_balancer("cache_aware", 0), engines({"a": 0})
    both = engines({"a": 0, "b": 0})
    for program in ("old", "new"):
        balancer.assign(call(program, 10_000_000), loads)
    assert balancer.assign(call("new", 10_000_001, repeated=10_000_000), both) == "a"
    assert balancer.assign(call("old", 10_000_001, repeated=10_000_000), both) == "b"


def test_scorers_weigh_prefix_queue_and_memory() -> None:
    loads = engines({"a": 0, "b": 0}, kv_tokens=10_000)
    balancer = make_balancer("scorers", 0)
    first = balancer.assign(call("one", 1000), loads)
    other = "b" if first == "a" else "a"
    # A known prefix outweighs a tenth of the memory, and a longer queue with it outweighs neither alone.
    assert balancer.assign(call("one", 1100, repeated=1000), loads) == first
    assert balancer.assign(call("new", 1000), loads) == other
    queue = engines({first: 1, other: 0}, kv_tokens=10_000)
    assert balancer.assign(call("one", 1200, repeated=1100), queue) == first
    assert balancer.assign(call("one", 1800, repeated=1000), queue) == other


def test_scorers_count_no_call_that_has_finished() -> None:
    loads = engines({"a": 0, "b": 0}, kv_tokens=10_000)
    balancer = make_balancer("scorers", 0)
    first = balancer.assign(call("one", 9000), loads)
    other = balancer.assign(call("two", 5000), loads)
    assert other != first
    balancer.finished(FinishedCall(program_id="one", engine=first, prompt_tokens=9000, output_tokens=1))
    assert balancer.assign(call("three", 1000), loads) == first


def test_scorers_read_no_more_than_the_first_256_blocks() -> None:
    loads = engines({"a": 0, "b": 0}, kv_tokens=1e9)
    balancer = make_balancer("scorers", 0)
    first = balancer.assign(call("one", 50_000, prefix="same", prefix_tokens=4096), loads)
    other = "b" if first == "a" else "a"
    waiting = engines({first: 0, other: 0}, kv_tokens=1e9)
    assert balancer.assign(call("two", 50_000, prefix="same", prefix_tokens=4096), waiting) == first
    busy = engines({first: 1, other: 0}, kv_tokens=1e9)
    assert balancer.assign(call("one", 90_000, repeated=50_000), busy) == first
