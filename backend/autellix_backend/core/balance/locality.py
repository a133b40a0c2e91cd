"""Algorithm 2: short calls go to the least used engine, long ones to that of their program's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.balance.base import (
    ArrivingCall,
    Balancer,
    EngineLoad,
    LostEngines,
    able,
    accepting,
    least_used,
)

DEFAULT_THRESHOLD_TOKENS = 2048


class Locality(Balancer):
    """Algorithm 2, with the engine that each program's long calls are pinned to.

    The pins of an engine that stops accepting calls are dropped: its programs are pinned afresh, and stay
    where they are when it returns, since its cache may be empty.
    """

    name: ClassVar[str] = "locality"

    def __init__(self, threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS) -> None:
        self._threshold_tokens = threshold_tokens
        self._pins: dict[str, str] = {}
        self._lost = LostEngines()

    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine of a call (Alg. 2, lines 1-14)."""
        engines = accepting(loads)
        if gone := self._lost.update(engines):
            self._pins = {program: engine for program, engine in self._pins.items() if engine not in gone}
        engines = able(call, engines)
        if call.prompt_tokens < self._threshold_tokens:  # Alg. 2, line 2
            return least_used(engines).name  # Alg. 2, line 3
        pin = self._pins.get(call.program_id)
        if not any(load.name == pin for load in engines):  # Alg. 2, line 5
            self._pins[call.program_id] = least_used(engines).name  # Alg. 2, lines 9-10
        return self._pins[call.program_id]

    def forget(self, program_id: str) -> None:
        """Drop a program that has ended; it may be unknown."""
        self._pins.pop(program_id, None)
