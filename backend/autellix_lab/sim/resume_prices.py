"""What bringing contexts back costs a simulated engine, learned and weighed as the live scheduler does it."""

from __future__ import annotations

from autellix_backend.core.preemption import (
    PreemptionCosts,
    Resume,
    ResumeKind,
    is_interruption_worth,
)
from autellix_lab.sim.calls import EngineCall

__all__ = ["ResumePrices"]


class ResumePrices:
    """The price list of one engine, which is told of steps and loads and knows nothing of the model."""

    def __init__(self, block_tokens: int, *, has_host: bool) -> None:
        self._costs = PreemptionCosts()
        self._block_tokens = block_tokens
        self._has_host = has_host
        """Whether the host keeps a copy of full blocks."""

    def observe_steps(self, read_tokens: int, step_s: float, steps: int) -> None:
        """Take in equal steps, each of which read so many tokens of prompts."""
        for _ in range(steps):
            self._costs.observe_step(read_tokens, step_s)

    def observe_load(self, blocks: int, seconds: float) -> None:
        """Take in a transfer from the host."""
        self._costs.observe_load(blocks, seconds)

    def tokens_to_load(self, call: EngineCall, start: int) -> int:
        """Return how many tokens of a waiting call to load behind `start`: what is stored, or none."""
        stored = max(0, call.stored_tokens - start)
        resume = self._resume(call.known - start, stored) if stored else None
        # Without a price it loads, and so learns one.
        return 0 if resume is not None and resume.kind is ResumeKind.RECOMPUTE else stored

    def is_worth(self, call: EngineCall, now: float, *, running: int) -> bool:
        """Say whether to interrupt one of so many running calls, which is up to date; it loses its blocks."""
        assert call.state is not None
        stored = call.computed // self._block_tokens * self._block_tokens if self._has_host else 0
        return is_interruption_worth(call.state, now, self._resume(call.computed, stored), running=running)

    def _resume(self, tokens: int, stored_tokens: int) -> Resume | None:
        # Counted in blocks in place of bytes: a price is a line over either.
        return self._costs.resume(tokens, stored_tokens=stored_tokens, token_bytes=1.0 / self._block_tokens)
