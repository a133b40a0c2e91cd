"""How fast an engine is, learnt from the calls that it has answered.

The time of a call is taken to be

    prefill_s_per_token x tokens read + decode_s_per_token x tokens written

Both are found by least squares over recent calls, which weigh less the older they are. A first guess counts
like a few calls, so that the first one decides nothing. Neither falls below a hundredth of its guess: calls
that differ in one number only say nothing of the other.

An estimate moves only with the engine's own calls, so one that is too slow would keep calls away, and itself
alive, for good. The more calls in a row went to other engines, the less an engine's own estimate counts, and
the more that of the fastest engine: after STALE_CALLS it is taken to be as fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["STALE_CALLS", "Speed", "SpeedEstimate", "fastest"]

PREFILL_GUESS_S = 0.0002
DECODE_GUESS_S = 0.02
DECAY = 0.98
"""What a call weighs once another has come: about the last fifty count."""
GUESS_WEIGHT = 4.0
GUESSED_READ_TOKENS = 500.0
GUESSED_WRITTEN_TOKENS = 50.0
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
        self._read_read = GUESS_WEIGHT * GUESSED_READ_TOKENS**2
        self._written_written = GUESS_WEIGHT * GUESSED_WRITTEN_TOKENS**2
        self._read_written = 0.0
        self._read_s = self._read_read * PREFILL_GUESS_S
        self._written_s = self._written_written * DECODE_GUESS_S

    def on_call_placed(self, *, is_here: bool) -> None:
        """Note that a call was sent to this engine, or to another one."""
        self._calls_elsewhere = 0 if is_here else self._calls_elsewhere + 1

    def estimate(self, fastest: SpeedEstimate) -> SpeedEstimate:
        """Return the speed to expect, in a pool whose fastest engine is this fast."""
        staleness = min(1.0, self._calls_elsewhere / STALE_CALLS)
        return SpeedEstimate(
            (1 - staleness) * self.prefill_s_per_token + staleness * fastest.prefill_s_per_token,
            (1 - staleness) * self.decode_s_per_token + staleness * fastest.decode_s_per_token,
        )

    def learn(self, *, read_tokens: int, written_tokens: int, duration_s: float) -> None:
        """Take in a call: the tokens that it read and wrote, and how long the engine had it."""
        self._read_read = DECAY * self._read_read + read_tokens**2
        self._written_written = DECAY * self._written_written + written_tokens**2
        self._read_written = DECAY * self._read_written + read_tokens * written_tokens
        self._read_s = DECAY * self._read_s + read_tokens * duration_s
        self._written_s = DECAY * self._written_s + written_tokens * duration_s
        self._solve()

    def _solve(self) -> None:
        determinant = self._read_read * self._written_written - self._read_written**2
        if determinant <= 0:
            return
        prefill = (self._read_s * self._written_written - self._written_s * self._read_written) / determinant
        decode = (self._written_s * self._read_read - self._read_s * self._read_written) / determinant
        self.prefill_s_per_token = max(prefill, FLOOR * PREFILL_GUESS_S)
        self.decode_s_per_token = max(decode, FLOOR * DECODE_GUESS_S)


def fastest(speeds: Iterable[Speed]) -> SpeedEstimate:
    """Return the least seconds per token among the engines, or the first guess where there is none."""
    known = list(speeds)
    return SpeedEstimate(
        min((speed.prefill_s_per_token for speed in known), default=PREFILL_GUESS_S),
        min((speed.decode_s_per_token for speed in known), default=DECODE_GUESS_S),
    )
