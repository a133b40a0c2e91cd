"""The speed of an engine, learned from the calls that it has answered.

The time of a call is modelled as

    prefill_s_per_token x prefilled tokens + decode_s_per_token x decoded tokens

Both are found by least squares over recent calls, which weigh less the older they are. A first guess counts
like a few calls, so that the first one decides nothing. Neither falls below a hundredth of its guess: calls
that differ in one number only carry no information on the other.

An estimate changes only with the engine's own calls, so one that is too slow would keep calls away, and
never change. The more calls in a row went to other engines, the less an engine's own estimate counts, and
the more that of the fastest engine: after STALE_CALLS it is taken to be as fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PREFILL_GUESS_S = 0.0002
DECODE_GUESS_S = 0.02
DECAY = 0.98
"""The weight that a call keeps after each further one: about the last fifty count."""
GUESS_WEIGHT = 4.0
GUESSED_PREFILL_TOKENS = 500.0
GUESSED_DECODE_TOKENS = 50.0
FLOOR = 0.01
STALE_CALLS = 100


class SpeedEstimate(NamedTuple):
    """Seconds for each token of a prompt and of an answer."""

    prefill_s_per_token: float
    decode_s_per_token: float


class Speed:
    """The speed of one engine."""

    def __init__(self) -> None:
        self.prefill_s_per_token = PREFILL_GUESS_S
        self.decode_s_per_token = DECODE_GUESS_S
        self._calls_elsewhere = 0
        self._prefill_square = GUESS_WEIGHT * GUESSED_PREFILL_TOKENS**2
        self._decode_square = GUESS_WEIGHT * GUESSED_DECODE_TOKENS**2
        self._product = 0.0
        self._prefill_s = self._prefill_square * PREFILL_GUESS_S
        self._decode_s = self._decode_square * DECODE_GUESS_S

    def on_call_placed(self, *, is_here: bool) -> None:
        """Count a call that was sent to this engine or to another one."""
        self._calls_elsewhere = 0 if is_here else self._calls_elsewhere + 1

    def estimate(self, fastest: SpeedEstimate) -> SpeedEstimate:
        """Return the speed to expect, in a pool whose fastest engine is this fast."""
        staleness = min(1.0, self._calls_elsewhere / STALE_CALLS)
        return SpeedEstimate(
            (1 - staleness) * self.prefill_s_per_token + staleness * fastest.prefill_s_per_token,
            (1 - staleness) * self.decode_s_per_token + staleness * fastest.decode_s_per_token,
        )

    def learn(self, *, prefill_tokens: int, decode_tokens: int, duration_s: float) -> None:
        """Add a call: the tokens that it prefilled and decoded, and its time in the engine."""
        self._prefill_square = DECAY * self._prefill_square + prefill_tokens**2
        self._decode_square = DECAY * self._decode_square + decode_tokens**2
        self._product = DECAY * self._product + prefill_tokens * decode_tokens
        self._prefill_s = DECAY * self._prefill_s + prefill_tokens * duration_s
        self._decode_s = DECAY * self._decode_s + decode_tokens * duration_s
        self._solve()

    def _solve(self) -> None:
        determinant = self._prefill_square * self._decode_square - self._product**2
        if determinant <= 0:
            return
        prefill = (self._prefill_s * self._decode_square - self._decode_s * self._product) / determinant
        decode = (self._decode_s * self._prefill_square - self._prefill_s * self._product) / determinant
        self.prefill_s_per_token = max(prefill, FLOOR * PREFILL_GUESS_S)
        self.decode_s_per_token = max(decode, FLOOR * DECODE_GUESS_S)


def fastest(speeds: Iterable[Speed]) -> SpeedEstimate:
    """Return the least seconds per token among the engines, or the first guess where there is none."""
    known = list(speeds)
    return SpeedEstimate(
        min((speed.prefill_s_per_token for speed in known), default=PREFILL_GUESS_S),
        min((speed.decode_s_per_token for speed in known), default=DECODE_GUESS_S),
    )
