"""The circuit breaker opens after consecutive failures, allows one trial, and closes when it succeeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.engines.breaker import Breaker, BreakerState


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(failures=2, cooldown_s=5.0)
    breaker.fail(at_s)
    breaker.fail(at_s)
    return breaker


def test_opens_only_after_consecutive_failures() -> None:
    breaker = Breaker(failures=2, cooldown_s=5.0)
    for _ in range(3):
        breaker.fail(0.0)
        assert breaker.admit(0.0)
        breaker.succeed()
    breaker.fail(1.0)
    breaker.fail(1.0)
    assert not breaker.admit(5.9)
    assert breaker.state is BreakerState.OPEN


def test_allows_one_trial_after_the_cool_down() -> None:
    breaker = opened()
    assert [breaker.admit(5.0), breaker.admit(5.0)] == [True, False]
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.admit(5.0)


def test_a_failed_trial_reopens_it_for_a_whole_cool_down() -> None:
    breaker = opened()
    assert breaker.admit(5.0)
    breaker.fail(6.0)
    assert [breaker.admit(10.9), breaker.admit(11.0)] == [False, True]


def test_an_abandoned_trial_admits_the_next() -> None:
    breaker = opened()
    assert breaker.admit(5.0)
    breaker.abandon()
    assert [breaker.admit(5.0), breaker.admit(5.0)] == [True, False]


@given(st.lists(st.sampled_from(["admit", "succeed", "fail", "abandon", "wait"]), max_size=60))
def test_never_stays_open_and_never_allows_two_trials(steps: list[str]) -> None:
    """However calls end: a cool-down later somebody may go, and only one until it is told."""
    breaker, now = Breaker(failures=2, cooldown_s=1.0), 0.0
    for step in steps:
        if step == "admit":
            was_closed = breaker.state is BreakerState.CLOSED
            is_admitted = breaker.admit(now)
            assert is_admitted or not was_closed
            assert not (is_admitted and not was_closed and breaker.admit(now))
        elif step == "fail":
            breaker.fail(now)
        elif step == "wait":
            now += 0.4
        else:
            getattr(breaker, step)()
    breaker.abandon()
    assert breaker.admit(now + 1.0)
