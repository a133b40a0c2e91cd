"""Algorithm 2."""

from __future__ import annotations

import pytest

from autellix_backend.core.balance import BALANCER_NAMES, Locality, RoundRobin, least_used, make_balancer


def test_the_first_engine_wins_a_tie() -> None:
    assert least_used({"b": 1, "a": 1, "c": 2}) == "b"


def test_without_engines_there_is_no_choice() -> None:
    with pytest.raises(ValueError, match="empty"):
        least_used({})


def test_short_calls_follow_the_load_and_pin_nothing() -> None:
    balancer = Locality()

    assert balancer.assign("p", 2047, {"a": 1, "b": 0}) == "b"
    assert balancer.assign("p", 2047, {"a": 0, "b": 1}) == "a"
    assert balancer.pins == {}


def test_long_calls_stay_where_the_first_one_went() -> None:
    balancer = Locality()

    assert balancer.assign("p", 2048, {"a": 1, "b": 0}) == "b"
    assert balancer.assign("p", 2048, {"a": 0, "b": 9}) == "b"
    assert balancer.assign("q", 2048, {"a": 0, "b": 9}) == "a"


def test_a_program_moves_when_its_engine_is_gone() -> None:
    balancer = Locality()
    balancer.assign("p", 5000, {"a": 0, "b": 1})

    assert balancer.assign("p", 5000, {"b": 1, "c": 0}) == "c"
    assert balancer.pins == {"p": "c"}


def test_a_released_program_is_forgotten() -> None:
    balancer = Locality()
    balancer.assign("p", 5000, {"a": 0})

    balancer.release("p")
    balancer.release("p")

    assert balancer.pins == {}


def test_engines_take_turns() -> None:
    balancer = RoundRobin()
    turns = [balancer.assign("p", 9999, {"a": 5, "b": 0, "c": 1}) for _ in range(4)]
    assert turns == ["a", "b", "c", "a"]


def test_a_balancer_is_made_by_its_name() -> None:
    for name in BALANCER_NAMES:
        balancer = make_balancer(name, 10)
        assert balancer.assign("p", 10, {"a": 1.0}) == "a"
        balancer.release("p")
    assert make_balancer("least_used").assign("p", 9999, {"a": 1, "b": 0}) == "b"


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_no_balancer_can_choose_without_engines(name: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        make_balancer(name).assign("p", 1, {})


def test_an_unknown_balancer_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="must be one of round_robin, least_used, locality, not 'random'"):
        make_balancer("random")
