"""The balancers' registry, those that remember nothing, and Algorithm 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autellix_backend.core.balance import BALANCER_NAMES, EngineLoad, FinishedCall, make_balancer
from autellix_backend.core.balance.base import ArrivingCall
from autellix_backend.core.balance.locality import Locality
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.balance.spread import LeastUsed, RoundRobin
from autellix_backend.core.errors import NoEngineError, UnknownBalancerError


def engines(calls: Mapping[str, int], *, closed: str = "", **changes: Any) -> list[EngineLoad]:
    """Return engines with these numbers of calls, of which as many run as there are slots."""
    found = []
    for name, count in calls.items():
        values = {"slots": 4, "prefill_s_per_token": 0.001, "decode_s_per_token": 0.02} | changes
        running = min(count, values["slots"])
        waiting = count - running
        is_accepting = name not in closed
        found.append(
            EngineLoad(name=name, running=running, waiting=waiting, is_accepting=is_accepting, **values)
        )
    return found


def test_an_unknown_balancer_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownBalancerError,
        match="one of round_robin, least_used, locality, locality_bounded, working_set, not 'random'",
    ):
        make_balancer("random")


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_the_spelling_of_0_2_is_accepted(name: str) -> None:
    assert type(make_balancer(name.replace("_", "-"))) is type(make_balancer(name))


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_an_engine_that_drains_or_is_down_gets_no_call(name: str) -> None:
    balancer = make_balancer(name)

    chosen = {
        balancer.assign(ArrivingCall(f"p{number % 7}", 4000), engines({"a": 0, "b": 9, "c": 9}, closed="a"))
        for number in range(20)
    }

    assert "a" not in chosen


@pytest.mark.parametrize("name", BALANCER_NAMES)
@pytest.mark.parametrize("closed", ["", "ab"])
def test_without_an_engine_that_accepts_there_is_no_choice(name: str, closed: str) -> None:
    loads = engines({"a": 0, "b": 0} if closed else {}, closed=closed)
    with pytest.raises(NoEngineError, match=f"none of {len(loads)} engine"):
        make_balancer(name).assign(ArrivingCall("p", 1), loads)


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_a_call_goes_to_an_engine_that_can_answer_it(name: str) -> None:
    balancer, loads = make_balancer(name), engines({"a": 0, "b": 9, "c": 9})

    chosen = {
        balancer.assign(ArrivingCall(f"p{number % 7}", 4000, among={"b", "c"}), loads) for number in range(20)
    }

    assert "a" not in chosen
    with pytest.raises(NoEngineError):
        balancer.assign(ArrivingCall("p", 4000, among={"gone"}), loads)


@pytest.mark.parametrize("name", ["locality", "locality_bounded", "working_set"])
def test_a_call_that_only_one_engine_can_answer_moves_no_other_program(name: str) -> None:
    balancer = make_balancer(name)
    assert balancer.assign(ArrivingCall("p", 4000), engines({"a": 0, "b": 1})) == "a"
    assert balancer.assign(ArrivingCall("q", 4000, among=["b"]), engines({"a": 1, "b": 1})) == "b"

    assert balancer.assign(ArrivingCall("p", 4000), engines({"a": 1, "b": 0})) == "a"
    assert balancer.assign(ArrivingCall("p", 4000, among=["b"]), engines({"a": 1, "b": 0})) == "b"


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_unknown_calls_and_programs_are_ignored(name: str) -> None:
    balancer = make_balancer(name)

    balancer.finished(FinishedCall(program_id="p", engine="gone", prompt_tokens=9, output_tokens=9))
    balancer.forget("p")

    assert balancer.assign(ArrivingCall("p", 9), engines({"a": 0})) == "a"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("running", -1),
        ("waiting", -1),
        ("slots", 0),
        ("prefill_s_per_token", float("nan")),
        ("decode_s_per_token", -1.0),
        ("kv_tokens", -1),
    ],
)
def test_a_bad_load_names_its_field(field: str, value: float) -> None:
    good: dict[str, Any] = {
        "running": 0,
        "waiting": 0,
        "slots": 1,
        "prefill_s_per_token": 0.0,
        "decode_s_per_token": 0.0,
    }
    with pytest.raises(ValueError, match=f"^{field} must"):
        EngineLoad(name="a", **(good | {field: value}))


def test_round_robin_alternates_between_engines() -> None:
    balancer = RoundRobin()
    turns = [balancer.assign(ArrivingCall("p", 9999), engines({"a": 5, "b": 0, "c": 1})) for _ in range(4)]
    assert turns == ["a", "b", "c", "a"]


def test_the_least_used_engine_has_the_fewest_calls_and_the_first_wins_a_tie() -> None:
    assert LeastUsed().assign(ArrivingCall("p", 9999), engines({"b": 1, "a": 1, "c": 2})) == "b"
    assert LeastUsed().assign(ArrivingCall("p", 9999), engines({"b": 9, "a": 8, "c": 9})) == "a"


def test_short_calls_follow_the_load_and_pin_nothing() -> None:
    balancer = Locality()

    assert balancer.assign(ArrivingCall("p", 2047), engines({"a": 1, "b": 0})) == "b"
    assert balancer.assign(ArrivingCall("p", 2047), engines({"a": 0, "b": 1})) == "a"
    assert balancer._pins == {}


def test_long_calls_stay_on_the_engine_of_the_first_one() -> None:
    balancer = Locality()

    assert balancer.assign(ArrivingCall("p", 2048), engines({"a": 1, "b": 0})) == "b"
    assert balancer.assign(ArrivingCall("p", 2048), engines({"a": 0, "b": 9})) == "b"
    assert balancer.assign(ArrivingCall("q", 2048), engines({"a": 0, "b": 9})) == "a"


def test_a_program_moves_when_its_engine_is_gone() -> None:
    balancer = Locality()
    balancer.assign(ArrivingCall("p", 5000), engines({"a": 0, "b": 1}))

    assert balancer.assign(ArrivingCall("p", 5000), engines({"b": 1, "c": 0})) == "c"
    assert balancer._pins == {"p": "c"}


def test_an_engine_that_returns_has_lost_its_pins() -> None:
    balancer = Locality()
    balancer.assign(ArrivingCall("p", 5000), engines({"a": 0, "b": 1}))
    balancer.assign(ArrivingCall("q", 5000), engines({"a": 0, "b": 1}, closed="a"))

    assert balancer._pins == {"q": "b"}
    assert balancer.assign(ArrivingCall("p", 5000), engines({"a": 9, "b": 1})) == "b"


def test_a_dropped_program_has_no_pin() -> None:
    balancer = Locality()
    balancer.assign(ArrivingCall("p", 5000), engines({"a": 0}))

    balancer.forget("p")
    balancer.forget("p")

    assert balancer._pins == {}


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_no_memory_decides_where_engines_report_none(name: str) -> None:
    balancer = make_balancer(name)
    balancer.assign(ArrivingCall("p", 4000), engines({"a": 0, "b": 0}))

    assert balancer.placement("p") is None


def test_saturation_is_what_the_programs_need_over_what_the_engine_has() -> None:
    [load] = engines({"a": 6})
    assert load.saturation == 1.5
    memory = MemoryReport(
        capacity_tokens=1000.0, active_tokens=900, active_programs=3, inactive_tokens=1100, inactive_calls=2
    )
    assert replace(load, memory=memory).saturation == 2.0
    assert replace(load, running=4, waiting=8, memory=memory).saturation == 3.0
