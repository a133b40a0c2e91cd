"""Balancers without state of programs: the baselines of Algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.balance.base import ArrivingCall, Balancer, EngineLoad, able, accepting, least_used


class RoundRobin(Balancer):
    """Engines in rotation; one that accepts no calls is skipped."""

    name: ClassVar[str] = "round_robin"

    def __init__(self) -> None:
        self._calls = 0

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the next engine."""
        engines = able(call, accepting(loads))
        engine = engines[self._calls % len(engines)]
        self._calls += 1
        return engine.name


class LeastUsed(Balancer):
    """Sends each call to the engine with the fewest."""

    name: ClassVar[str] = "least_used"

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine with the fewest calls."""
        return least_used(able(call, accepting(loads))).name
