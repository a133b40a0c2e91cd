"""Whether interrupting a running request is worth its price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import PreemptionCosts, Resume, preemption_pays

__all__ = ["InterruptionPrices"]


class InterruptionPrices:
    """Learns what steps cost, tells from that what coming back costs, and weighs it.

    Where our connector keeps contexts in host memory, it has the price list and knows what it can load.
    """

    def __init__(self, connector: Any, machine: Machine, block_tokens: int) -> None:
        self._connector = connector if hasattr(connector, "resume_of") else None
        self._costs = PreemptionCosts() if self._connector is None else self._connector.costs
        self._machine = machine
        self._block_tokens = block_tokens
        self.refused = 0
        """Interruptions that were not worth their price."""

    def observe_step(self, scheduled_tokens: Mapping[str, int], cost_s: float) -> None:
        """Take in an executed step; a call that had several tokens in it was reading."""
        read_tokens = sum(tokens for tokens in scheduled_tokens.values() if tokens > 1)
        self._costs.observe_step(read_tokens, cost_s)

    def note_preempted(self, request_id: str) -> None:
        """Tell the connector of a preemption, which vLLM itself tells only with the step."""
        if self._connector is not None:
            self._connector.note_preempted(request_id)

    def is_worth(self, request: Any, now: float, *, running: int) -> bool:
        """Say whether to interrupt one of so many running requests; it loses its blocks."""
        call = self._machine.call(request.request_id)
        is_worth = preemption_pays(call, now, self._resume(request), running=running)
        self.refused += not is_worth
        return is_worth

    def _resume(self, request: Any) -> Resume | None:
        tokens = request.num_computed_tokens
        if self._connector is None:
            return self._costs.resume(tokens, stored_tokens=0, token_bytes=0.0)
        resume: Resume | None = self._connector.resume_of(
            request, tokens // self._block_tokens * self._block_tokens
        )
        return resume
