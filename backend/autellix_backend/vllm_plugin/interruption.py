"""Whether interrupting a running request is worth its price, where contexts are kept in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import is_interruption_worth

__all__ = ["InterruptionPrices"]


class InterruptionPrices:
    """Learns what steps cost, asks the KV connector what coming back costs, and weighs it.

    Without our connector nothing has a price and every interruption counts as worth it.
    """

    def __init__(self, connector: Any, machine: Machine, block_tokens: int) -> None:
        self._connector = connector if hasattr(connector, "resume_s") else None
        self._machine = machine
        self._block_tokens = block_tokens
        self.refused = 0
        """Interruptions that were not worth their price."""

    def observe_step(self, scheduled_tokens: Mapping[str, int], cost_s: float) -> None:
        """Take in an executed step; a call that had several tokens in it was reading."""
        if self._connector is not None:
            read_tokens = sum(tokens for tokens in scheduled_tokens.values() if tokens > 1)
            self._connector.costs.observe_step(read_tokens, cost_s)

    def note_preempted(self, request_id: str) -> None:
        """Tell the connector of a preemption, which vLLM itself tells only with the step."""
        if self._connector is not None:
            self._connector.note_preempted(request_id)

    def is_worth(self, request: Any, now: float) -> bool:
        """Say whether to interrupt a running request for one that goes before it."""
        if self._connector is None:
            return True
        call = self._machine.call(request.request_id)
        full_block_tokens = request.num_computed_tokens // self._block_tokens * self._block_tokens
        cost_s = self._connector.resume_s(request, full_block_tokens)
        is_worth = is_interruption_worth(call, now, cost_s)
        self.refused += not is_worth
        return is_worth
