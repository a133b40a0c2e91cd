"""The price of a resume on a simulated engine, learned and compared as in the live scheduler."""

from __future__ import annotations

from autellix_backend.core.preemption import PreemptionCosts, Resume, ResumeKind, preemption_pays
from autellix_backend.core.statistics import PrefillCost
from autellix_lab.sim.calls import EngineCall


class ResumePrices:
    """The price list of one engine; it learns from steps and loads, and does not know the engine model."""

    def __init__(self, block_tokens: int, *, has_host: bool) -> None:
        self._costs = PreemptionCosts()
        self._block_tokens = block_tokens
        self._has_host = has_host
        """Whether the host keeps a copy of full blocks."""

    def use_prefill_cost(self, cost: PrefillCost) -> None:
        """Use what the engine's machine learns of its steps."""
        self._costs.prefill = cost

    def observe_load(self, blocks: int, seconds: float) -> None:
        """Observe a load from the host."""
        self._costs.observe_load(blocks, seconds)

    def tokens_to_load(self, call: EngineCall, start: int, stored: int) -> int:
        """Return how many of a waiting call's stored tokens to load behind `start`: all or none."""
        resume = self._resume(call.known - start, stored) if stored else None
        # Without a price, load and so learn one.
        return 0 if resume is not None and resume.kind is ResumeKind.RECOMPUTE else stored

    def load_of(self, tokens: int, stored: int) -> tuple[float, float]:
        """Return the share of a context that would be loaded, and the seconds of that."""
        return self._costs.load_of(tokens, stored_tokens=stored, token_bytes=1.0 / self._block_tokens)

    def lost_tokens(self, call: EngineCall) -> int:
        """Return the tokens that a call, which is up to date, would compute again."""
        resume = self._resume_of(call)
        is_loaded = resume is not None and resume.kind is ResumeKind.LOAD
        return call.computed % self._block_tokens if is_loaded else call.computed

    def preemption_pays(self, call: EngineCall, now: float, *, running: int) -> bool:
        """Return whether preempting a call that is up to date, one of `running` calls, pays."""
        assert call.state is not None
        return preemption_pays(call.state, now, self._resume_of(call), running=running)

    def _resume_of(self, call: EngineCall) -> Resume | None:
        stored = call.computed // self._block_tokens * self._block_tokens if self._has_host else 0
        return self._resume(call.computed, stored)

    def _resume(self, tokens: int, stored_tokens: int) -> Resume | None:
        # In blocks instead of bytes: a price is linear in either.
        return self._costs.resume(tokens, stored_tokens=stored_tokens, token_bytes=1.0 / self._block_tokens)
