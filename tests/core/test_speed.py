"""Speeds of engines, learnt from their calls."""

from __future__ import annotations

import pytest

from autellix_backend.core.balance.speed import (
    DECODE_GUESS_S,
    FLOOR,
    PREFILL_GUESS_S,
    STALE_CALLS,
    Speed,
    SpeedEstimate,
    fastest,
)

CALLS = [(100, 20), (2000, 5), (10, 300), (700, 60)]


def taught(prefill_s: float, decode_s: float, rounds: int = 60) -> Speed:
    speed = Speed()
    for _ in range(rounds):
        for read, written in CALLS:
            duration_s = read * prefill_s + written * decode_s
            speed.learn(prefill_tokens=read, decode_tokens=written, duration_s=duration_s)
    return speed


@pytest.mark.parametrize(("prefill_s", "decode_s"), [(0.001, 0.05), (0.00002, 0.004)])
def test_both_speeds_are_estimated(prefill_s: float, decode_s: float) -> None:
    speed = taught(prefill_s, decode_s)
    assert speed.prefill_s_per_token == pytest.approx(prefill_s, rel=0.1)
    assert speed.decode_s_per_token == pytest.approx(decode_s, rel=0.05)


def test_the_estimate_follows_a_slower_engine() -> None:
    speed = taught(0.0001, 0.01)
    before_s = speed.decode_s_per_token
    for read, written in CALLS * 60:
        speed.learn(prefill_tokens=read, decode_tokens=written, duration_s=read * 0.0001 + written * 0.03)
    assert speed.decode_s_per_token > 2 * before_s


def test_one_call_does_not_replace_the_initial_guess() -> None:
    speed = Speed()
    assert (speed.prefill_s_per_token, speed.decode_s_per_token) == (PREFILL_GUESS_S, DECODE_GUESS_S)
    speed.learn(prefill_tokens=10, decode_tokens=5, duration_s=3.0)
    assert speed.decode_s_per_token < 2 * DECODE_GUESS_S


def test_no_speed_falls_to_zero() -> None:
    speed = taught(0.0, 0.05)
    assert speed.prefill_s_per_token >= FLOOR * PREFILL_GUESS_S


def test_empty_calls_keep_the_last_speed() -> None:
    speed = taught(0.0001, 0.02)
    for _ in range(60_000):
        speed.learn(prefill_tokens=0, decode_tokens=0, duration_s=0.0)
    assert speed.decode_s_per_token > 0
    assert speed.prefill_s_per_token > 0


def test_an_engine_without_calls_gets_the_speed_of_the_fastest() -> None:
    """The longer ago its last call, the less an engine's own estimate counts; a call restores it."""

    slow, best = taught(0.001, 0.05), fastest([taught(0.001, 0.05), taught(0.0001, 0.01)])
    own = SpeedEstimate(slow.prefill_s_per_token, slow.decode_s_per_token)
    assert slow.estimate(best) == own
    for _ in range(STALE_CALLS // 2):
        slow.on_call_placed(is_here=False)
    assert slow.estimate(best) == pytest.approx([(a + b) / 2 for a, b in zip(own, best, strict=True)])
    for _ in range(STALE_CALLS):
        slow.on_call_placed(is_here=False)
    assert slow.estimate(best) == best
    slow.on_call_placed(is_here=True)
    assert slow.estimate(best) == own
