"""Algorithm 2."""

from __future__ import annotations

import pytest

from autellix_backend.core.balance import Balancer, least_used


def test_the_first_engine_wins_a_tie() -> None:
    assert least_used({"b": 1, "a": 1, "c": 2}) == "b"


def test_without_engines_there_is_no_choice() -> None:
    with pytest.raises(ValueError, match="empty"):
        least_used({})


def test_short_calls_follow_the_load_and_pin_nothing() -> None:
    balancer = Balancer()

    assert balancer.assign("p", 2047, {"a": 1, "b": 0}) == "b"
    assert balancer.assign("p", 2047, {"a": 0, "b": 1}) == "a"
    assert balancer.pins == {}


def test_long_calls_stay_where_the_first_one_went() -> None:
    balancer = Balancer()

    assert balancer.assign("p", 2048, {"a": 1, "b": 0}) == "b"
    assert balancer.assign("p", 2048, {"a": 0, "b": 9}) == "b"
    assert balancer.assign("q", 2048, {"a": 0, "b": 9}) == "a"


def test_a_program_moves_when_its_engine_is_gone() -> None:
    balancer = Balancer()
    balancer.assign("p", 5000, {"a": 0, "b": 1})

    assert balancer.assign("p", 5000, {"b": 1, "c": 0}) == "c"
    assert balancer.pins == {"p": "c"}


def test_a_released_program_is_forgotten() -> None:
    balancer = Balancer()
    balancer.assign("p", 5000, {"a": 0})

    balancer.release("p")
    balancer.release("p")

    assert balancer.pins == {}
