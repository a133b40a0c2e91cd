"""The cost of a preemption: loading the call's context back from host memory, or recomputing it.

Both prices are learned from what the engine measures. A load of `b` bytes takes `f + s * b` seconds, a line
fitted by least squares in which old samples fade; the call alone waits for it. Recomputing a context costs
the time that prefill steps take beyond decode steps, which would have run anyway (`statistics.PrefillCost`).

A running call is preempted only where that pays: the call that takes its slot would otherwise wait for the
rest of the running call's quantum, and the resume must cost less than that. A resumed call keeps its slot
until it has run for as long as the resume took, so that no two calls spend their time replacing each other.
Recomputing costs its time once for each running call, because all of them wait for prefill steps; a load
delays no other call.

Prices in seconds may be unknown, or zero where an engine's steps take equally long, and they bound one
preemption, not how often a call is preempted. So besides, resumes are counted in steps, and a call may be
preempted for another only once it has computed new tokens in twice as many steps as all its resumes cost, the
next one included. Where an engine itself must take blocks from a running call, a call that has not yet earned
its last resume goes after all others, and the one that got its slot first goes last. Hence:

- Every call ends. A call without new tokens is not preempted for another. If an engine whose calls do not end
  has taken blocks from each of them, all are those that go last, and the first of them keeps its blocks.
- Preemptions for other calls add at most half as much to the steps of the calls, and to the token budget that
  these would have used.

A context that stays in the prefix cache costs nothing to resume. The cache is assumed to keep the contexts
of all calls in the engine, running and waiting, as long as they fit into its memory together. Once they do
not fit, a preempted call loses its blocks, or others lose theirs in its place, which costs as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from autellix_backend.core.call import Call
from autellix_backend.core.statistics import MIN_SAMPLES, SAMPLE_FADING, PrefillCost


class ResumeKind(StrEnum):
    """How a resumed call gets its context back."""

    LOAD = "load"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The cheaper way to resume a call, and its price."""

    kind: ResumeKind
    seconds: float
    prefill_s: float
    """The part of it that prefills the context."""

    def cost_s(self, running: int) -> float:
        """Return the cost (s) to all running calls together, which all wait for prefill steps."""
        return self.seconds + (running - 1) * self.prefill_s


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
        """Add one measured sample."""
        self.samples += 1
        kept = self._weight * SAMPLE_FADING
        self._weight = kept + 1.0
        away = amount - self._amount
        self._amount += away / self._weight
        late = seconds - self._seconds
        self._seconds += late / self._weight
        # Welford's updates, with weights: sums of squares would lose all digits of large byte counts.
        self._amount_spread = SAMPLE_FADING * self._amount_spread + away * (amount - self._amount)
        self._covariance = SAMPLE_FADING * self._covariance + away * (seconds - self._seconds)

    @property
    def is_known(self) -> bool:
        """Whether there are enough samples."""
        return self.samples >= MIN_SAMPLES

    @property
    def slope(self) -> float:
        """Seconds per unit; the mean where all samples are of one amount."""
        if self._amount_spread > 0.0:
            slope = max(0.0, self._covariance / self._amount_spread)
            if slope * self._amount <= self._seconds:
                return slope
        return self._seconds / self._amount if self._amount > 0.0 else 0.0

    def estimate(self, amount: float) -> float:
        """Return the expected seconds for an amount."""
        slope = self.slope
        return max(0.0, self._seconds - slope * self._amount) + slope * amount


class PreemptionCosts:
    """The prices of resuming calls on one engine; all are unknown until enough was measured."""

    def __init__(self, prefill: PrefillCost | None = None) -> None:
        """Know no price; `prefill` is the engine's price of prefill, which its machine learns."""
        self._loads = CostLine()
        self.prefill = PrefillCost() if prefill is None else prefill

    def observe_load(self, moved_bytes: int, seconds: float) -> None:
        """Add a load into the engine's memory."""
        self._loads.observe(moved_bytes, seconds)

    def load_s(self, moved_bytes: float) -> float | None:
        """Return the expected seconds of loading these bytes; None while unknown."""
        if moved_bytes <= 0:
            return 0.0
        return self._loads.estimate(moved_bytes) if self._loads.is_known else None

    def recompute_s(self, tokens: float) -> float | None:
        """Return the expected seconds of recomputing these tokens; None while unknown."""
        if tokens <= 0:
            return 0.0
        token_s = self.prefill.token_s
        return None if token_s is None else token_s * tokens

    def load_of(self, tokens: int, *, stored_tokens: int, token_bytes: float) -> tuple[float, float]:
        """Return the share of a context that would be loaded, and the seconds of that; 0 s while unknown.

        The arguments are those of resume(). Where recomputing is cheaper, nothing would be loaded.
        """
        stored_tokens = min(tokens, stored_tokens)
        resume = self.resume(tokens, stored_tokens=stored_tokens, token_bytes=token_bytes)
        if stored_tokens <= 0 or (resume is not None and resume.kind is ResumeKind.RECOMPUTE):
            return 0.0, 0.0
        return stored_tokens / tokens, self.load_s(stored_tokens * token_bytes) or 0.0

    def resume(self, tokens: int, *, stored_tokens: int, token_bytes: float) -> Resume | None:
        """Return the cheaper way to resume a call; None while its price is unknown.

        Where tokens are stored and loads have no price yet, the result is None: loading will teach it. Where
        recomputing has no price, the result is a load.

        Args:
            tokens: The tokens of the context.
            stored_tokens: How many of them, from the front, could be loaded.
            token_bytes: The size of one token in the cache.
        """
        recompute_s = self.recompute_s(tokens)
        if stored_tokens <= 0:
            return None if recompute_s is None else _recompute(recompute_s)
        load_s = self.load_s(stored_tokens * token_bytes)
        rest_s = self.recompute_s(tokens - stored_tokens) or 0.0
        if load_s is None:
            return None
        load_s += rest_s
        if recompute_s is None or load_s <= recompute_s:
            return Resume(kind=ResumeKind.LOAD, seconds=load_s, prefill_s=rest_s)
        return _recompute(recompute_s)


def _recompute(seconds: float) -> Resume:
    return Resume(kind=ResumeKind.RECOMPUTE, seconds=seconds, prefill_s=seconds)


NEW_STEPS = 2
"""The steps with new tokens that a call needs for each step that its resumes cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What computing tokens again costs on one engine, in steps of a call."""

    budget: int
    """The tokens of a step."""
    chunk: int
    """The most of them for one call."""

    def of(self, tokens: int, running: int) -> float:
        """Return the steps that the call takes, or that `running` calls together lose of the token budget."""
        return max(-(-tokens // self.chunk), running * tokens / self.budget) if tokens > 0 else 0.0


def has_earned(call: Call, resume_steps: float = 0.0) -> bool:
    """Return whether a call has earned its resumes so far, and one more at a price."""
    return call.new_steps >= NEW_STEPS * (call.lost_steps + resume_steps)


def fit_together(needs: Iterable[int], room: float) -> bool:
    """Return whether there is room for all needs; stop at the first that does not fit."""
    for need in needs:
        room -= need
        if room < 0:
            return False
    return True


def preemption_pays(call: Call, now: float, resume: Resume | None, *, running: int) -> bool:
    """Return whether preempting one of `running` calls gains more time than its resume costs.

    An unknown price prevents nothing.
    """
    if resume is None:
        return True
    # Past its quantum, the remaining run time is unbounded.
    gain_s = call.quantum_s if call.quantum_s > 0 else math.inf
    ran_s = now - call.running_since_s if call.running_since_s is not None else 0.0
    return resume.cost_s(running) < min(gain_s, ran_s)
