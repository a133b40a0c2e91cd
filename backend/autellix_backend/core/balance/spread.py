"""Balancers that remember nothing of programs: what Algorithm 2 is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.balance.base import Balancer, EngineLoad, accepting, least_used


class RoundRobin(Balancer):
    """Engines in rotation; one that accepts no calls is skipped."""

    name: ClassVar[str] = "round_robin"

    def __init__(self) -> None:
        self._calls = 0

    def assign(
        self,
        program_id: str,  # noqa: ARG002
        prompt_tokens: int,  # noqa: ARG002
        loads: Sequence[EngineLoad],
        prefix: str = "",  # noqa: ARG002
    ) -> str:
        """Choose the next engine."""
        engines = accepting(loads)
        engine = engines[self._calls % len(engines)]
        self._calls += 1
        return engine.name


class LeastUsed(Balancer):
    """Every call goes where there are fewest."""

    name: ClassVar[str] = "least_used"

    def assign(
        self,
        program_id: str,  # noqa: ARG002
        prompt_tokens: int,  # noqa: ARG002
        loads: Sequence[EngineLoad],
        prefix: str = "",  # noqa: ARG002
    ) -> str:
        """Choose the engine with the fewest calls."""
        return least_used(accepting(loads)).name
