"""What an interruption costs: bringing a call's context back by a transfer, or computing it again.

Both prices are learned from what the engine measures. A transfer of `b` bytes takes `f + s * b` seconds, a
line that is fitted by least squares in which old samples fade; transferring a context costs its value, since
the call waits for all of it. Reading a context again costs what steps that read take beyond those that only
write, which would have been made anyway. No line is fitted there: under load all steps that read are equally
full, and those that only write may be long past.

A running call is interrupted only where that gains something: the one that takes its slot would otherwise
wait for what is left of the running call's quantum, and the interruption must cost less than that. And a
call that came back stays until it has run for as long as coming back took, so that no two calls spend their
time on taking turns. Reading again costs its time once for each call that runs, because all of them wait for
the steps that do it; a transfer is waited for by nobody else.

Nothing has to come back while the prefix cache keeps it. It is taken to keep the contexts of all calls in the
engine, running and waiting, as long as they fit into the memory together: then an interruption is free. Once
they do not, whoever gives up its blocks loses them, or others lose theirs in its place, which costs as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from autellix_backend.core.call import Call

__all__ = [
    "MIN_SAMPLES",
    "CostLine",
    "PreemptionCosts",
    "ReadingSpeed",
    "Resume",
    "ResumeKind",
    "fit_together",
    "is_interruption_worth",
    "is_worth_interrupting",
]

MIN_SAMPLES = 8
"""Samples that a line needs before it says anything."""
FADING = 0.98
"""What a sample counts after each further one: about the latest fifty decide."""


class ResumeKind(StrEnum):
    """How a preempted call gets its context back."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The cheaper way to bring a context back, and its price."""

    kind: ResumeKind
    seconds: float
    read_s: float
    """The part of it in which steps read the context."""

    def cost_s(self, running: int) -> float:
        """Return what it costs (s) all calls, of which so many run: they all wait for steps that read."""
        return self.seconds + (running - 1) * self.read_s


class CostLine:
    """Seconds as a line over an amount, fitted to samples as they come; neither part is ever negative."""

    def __init__(self) -> None:
        self.samples = 0
        self._weight = 0.0
        self._amount = 0.0
        self._seconds = 0.0
        self._amount_spread = 0.0
        self._covariance = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """Take in one measured sample."""
        self.samples += 1
        kept = self._weight * FADING
        self._weight = kept + 1.0
        away = amount - self._amount
        self._amount += away / self._weight
        late = seconds - self._seconds
        self._seconds += late / self._weight
        # Welford's updates, with weights: sums of squares would lose all digits of large byte counts.
        self._amount_spread = FADING * self._amount_spread + away * (amount - self._amount)
        self._covariance = FADING * self._covariance + away * (seconds - self._seconds)

    @property
    def is_known(self) -> bool:
        """Whether there are enough samples."""
        return self.samples >= MIN_SAMPLES

    @property
    def slope(self) -> float:
        """Seconds per unit; where all samples are of one amount, as if nothing were fixed."""
        if self._amount_spread > 0.0:
            slope = max(0.0, self._covariance / self._amount_spread)
            if slope * self._amount <= self._seconds:
                return slope
        return self._seconds / self._amount if self._amount > 0.0 else 0.0

    def estimate(self, amount: float) -> float:
        """Return the seconds that an amount is expected to take."""
        slope = self.slope
        return max(0.0, self._seconds - slope * self._amount) + slope * amount


class _Mean:
    """A mean in which old samples fade."""

    def __init__(self) -> None:
        self.samples = 0
        self._weight = 0.0
        self.value = 0.0

    def observe(self, value: float) -> None:
        self.samples += 1
        self._weight = self._weight * FADING + 1.0
        self.value += (value - self.value) / self._weight


class ReadingSpeed:
    """What a token of a prompt adds to the steps that read it, over those that only write."""

    def __init__(self) -> None:
        self._writing_s = _Mean()
        self._reading_s = _Mean()
        self._tokens = _Mean()

    def observe(self, read_tokens: int, seconds: float) -> None:
        """Take in an executed step."""
        if not read_tokens:
            self._writing_s.observe(seconds)
            return
        self._reading_s.observe(seconds)
        self._tokens.observe(read_tokens)

    @property
    def token_s(self) -> float | None:
        """Seconds per token; None while too few steps have read, or they take no longer than the others."""
        if self._tokens.samples < MIN_SAMPLES:
            return None
        added_s = self._reading_s.value - self._writing_s.value
        return added_s / self._tokens.value if added_s > 0 else None


class PreemptionCosts:
    """Prices of bringing contexts back on one engine; all are unknown until enough was measured."""

    def __init__(self) -> None:
        self._loads = CostLine()
        self._steps = ReadingSpeed()

    def observe_load(self, moved_bytes: int, seconds: float) -> None:
        """Take in a transfer into the engine's memory."""
        self._loads.observe(moved_bytes, seconds)

    def observe_step(self, read_tokens: int, seconds: float) -> None:
        """Take in an executed step that read so many tokens of prompts; zero where it only wrote."""
        self._steps.observe(read_tokens, seconds)

    def load_s(self, moved_bytes: float) -> float | None:
        """Return what a transfer of these bytes should take, or None while that is unknown."""
        if moved_bytes <= 0:
            return 0.0
        return self._loads.estimate(moved_bytes) if self._loads.is_known else None

    def recompute_s(self, tokens: float) -> float | None:
        """Return what reading these tokens again should take, or None while that is unknown."""
        if tokens <= 0:
            return 0.0
        token_s = self._steps.token_s
        return None if token_s is None else token_s * tokens

    def resume(self, tokens: int, *, stored_tokens: int, token_bytes: float) -> Resume | None:
        """Return the cheaper way to bring a context back, or None while its price is unknown.

        Args:
            tokens: the context's.
            stored_tokens: how many of them, from the front, a transfer could bring back.
            token_bytes: what one token takes in the cache.

        Where something is stored and transfers have no price yet, there is none: one learns it by loading.
        Where reading has none, it is loading.
        """
        read_s = self.recompute_s(tokens)
        if stored_tokens <= 0:
            return None if read_s is None else _reading(read_s)
        load_s = self.load_s(stored_tokens * token_bytes)
        rest_s = self.recompute_s(tokens - stored_tokens) or 0.0
        if load_s is None:
            return None
        swap_s = load_s + rest_s
        if read_s is None or swap_s <= read_s:
            return Resume(kind=ResumeKind.SWAP, seconds=swap_s, read_s=rest_s)
        return _reading(read_s)


def _reading(read_s: float) -> Resume:
    return Resume(kind=ResumeKind.RECOMPUTE, seconds=read_s, read_s=read_s)


def fit_together(needs: Iterable[int], room: float) -> bool:
    """Say whether there is room for all of these needs; stops at the first for which there is none."""
    for need in needs:
        room -= need
        if room < 0:
            return False
    return True


def is_worth_interrupting(*, gain_s: float, ran_s: float, cost_s: float | None) -> bool:
    """Say whether to interrupt a running call.

    Args:
        gain_s: what the call that takes its slot would otherwise wait at least.
        ran_s: how long the running call has had its slot.
        cost_s: what bringing the running call back will cost; None if unknown, which stops nothing.
    """
    return cost_s is None or cost_s < min(gain_s, ran_s)


def is_interruption_worth(call: Call, now: float, resume: Resume | None, *, running: int) -> bool:
    """Say whether to interrupt one of so many running calls, by its state and by how it would come back."""
    return is_worth_interrupting(
        # Who is beyond its quantum may run for any time yet.
        gain_s=call.quantum_s if call.quantum_s > 0 else math.inf,
        ran_s=now - call.running_since_s if call.running_since_s is not None else 0.0,
        cost_s=None if resume is None else resume.cost_s(running),
    )
