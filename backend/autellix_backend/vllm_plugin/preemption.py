"""Whether preempting a running request pays."""

from __future__ import annotations

from typing import Any

from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import PreemptionCosts, Resume, ResumeKind, preemption_pays


class PreemptionPrices:
    """Weighs a preemption against the cost of its resume, by what the machine learns of steps.

    Where our connector keeps contexts in host memory, the prices are the connector's, which knows what it can
    load.
    """

    def __init__(self, connector: Any, machine: Machine, block_tokens: int) -> None:
        self._connector = connector if hasattr(connector, "resume_of") else None
        self._costs = PreemptionCosts() if self._connector is None else self._connector.costs
        self._costs.prefill = machine.prefill
        self._machine = machine
        self._block_tokens = block_tokens

    def on_preempted(self, request_id: str) -> None:
        """Pass a preemption on to the connector, which vLLM itself informs only with the step."""
        if self._connector is not None:
            self._connector.on_preempted(request_id)

    def lost_tokens(self, request: Any) -> int:
        """Return the tokens that a running request would compute again if it lost its blocks."""
        resume = self._resume(request)
        is_loaded = resume is not None and resume.kind is ResumeKind.LOAD
        tokens = int(request.num_computed_tokens)
        return tokens % self._block_tokens if is_loaded else tokens

    def pays(self, request: Any, now: float, *, running: int) -> bool:
        """Return whether preempting one of `running` requests pays; it loses its blocks."""
        call = self._machine.call(request.request_id)
        return preemption_pays(call, now, self._resume(request), running=running)

    def _resume(self, request: Any) -> Resume | None:
        tokens = request.num_computed_tokens
        if self._connector is None:
            return self._costs.resume(tokens, stored_tokens=0, token_bytes=0.0)
        full_block_tokens = tokens // self._block_tokens * self._block_tokens
        resume: Resume | None = self._connector.resume_of(request, full_block_tokens)
        return resume
