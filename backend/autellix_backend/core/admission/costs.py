"""What it costs an engine to give a program its context back: engine time, or a load from host memory."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.core.admission.programs import ProgramContext
from autellix_backend.core.statistics import PrefillCost, TokenCost

HostLoads = Callable[[str, int], tuple[float, float]]
"""For an idle program's id and tokens: the share of its context that would be loaded from host memory when it
returns, and the seconds of the load; both are zero where recomputing is cheaper."""


class ContextCosts:
    """The seconds that contexts cost on one engine once they have been evicted."""

    def __init__(self, token_cost: TokenCost, prefill: PrefillCost) -> None:
        self.host_loads: HostLoads | None = None
        """The loads from host memory; None without any. Set once, by the owner."""
        self._token_cost = token_cost
        self._prefill = prefill

    def prefill_s(self, tokens: float) -> float:
        """Return the engine time (s) to prefill these tokens, by what they cost as work."""
        return self._token_cost.seconds * tokens

    def recompute_s(self, context: ProgramContext) -> float:
        """Return the same as `restore_s`, by what prefill adds to steps: less where output is long."""
        tokens = context.length
        share, load_s = self.load(context.program.program_id, tokens)
        return (1.0 - share) * (self._prefill.token_s or self._token_cost.seconds) * tokens + load_s

    def load(self, program_id: str, tokens: int) -> tuple[float, float]:
        """Return the share of a context that would be loaded from host memory, and the load's seconds."""
        return (0.0, 0.0) if self.host_loads is None else self.host_loads(program_id, tokens)

    def restore_s(self, context: ProgramContext) -> float:
        """Return the seconds until a program that was evicted has its own tokens again."""
        tokens = context.length
        share, load_s = self.load(context.program.program_id, tokens)
        return (1.0 - share) * self.prefill_s(tokens) + load_s
