"""How fast an engine is, learnt from the calls that it has answered.

The time of a call is taken to be

    prefill_s_per_token x tokens read + decode_s_per_token x tokens written

Both are found by least squares over recent calls, which weigh less the older they are. A first guess counts
like a few calls, so that the first one decides nothing. Neither falls below a hundredth of its guess: calls
that differ in one number only say nothing of the other.
"""

from __future__ import annotations

__all__ = ["Speed"]

PREFILL_GUESS_S = 0.0002
DECODE_GUESS_S = 0.02
DECAY = 0.98
"""What a call weighs once another has come: about the last fifty count."""
GUESS_WEIGHT = 4.0
GUESSED_READ_TOKENS = 500.0
GUESSED_WRITTEN_TOKENS = 50.0
FLOOR = 0.01


class Speed:
    """The speed of one engine."""

    def __init__(self) -> None:
        self.prefill_s_per_token = PREFILL_GUESS_S
        self.decode_s_per_token = DECODE_GUESS_S
        self._read_read = GUESS_WEIGHT * GUESSED_READ_TOKENS**2
        self._written_written = GUESS_WEIGHT * GUESSED_WRITTEN_TOKENS**2
        self._read_written = 0.0
        self._read_s = self._read_read * PREFILL_GUESS_S
        self._written_s = self._written_written * DECODE_GUESS_S

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
