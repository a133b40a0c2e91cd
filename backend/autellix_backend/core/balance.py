"""Algorithm 2: short calls go where there is least load, long ones where their program's cache is."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Balancer", "least_used"]


def least_used(loads: Mapping[str, float]) -> str:
    """Return the engine with the least load; the first one wins a tie (Alg. 2, lines 15-20).

    Raises:
        ValueError: there is no engine.
    """
    return min(loads, key=loads.__getitem__)  # Alg. 2, line 18


class Balancer:
    """The engine each program's long calls are pinned to."""

    def __init__(self, threshold_tokens: int = 2048) -> None:
        self._threshold_tokens = threshold_tokens
        self._pins: dict[str, str] = {}

    @property
    def pins(self) -> Mapping[str, str]:
        """The engine of each pinned program."""
        return self._pins

    def assign(self, program_id: str, prompt_tokens: int, loads: Mapping[str, float]) -> str:
        """Choose the engine of a call, given the load of every live engine (Alg. 2, lines 1-14).

        A program whose engine is not among the live ones is pinned afresh.
        """
        if prompt_tokens < self._threshold_tokens:  # Alg. 2, line 2
            return least_used(loads)  # Alg. 2, line 3
        engine = self._pins.get(program_id)
        if engine is None or engine not in loads:  # Alg. 2, line 5
            engine = self._pins[program_id] = least_used(loads)  # Alg. 2, lines 9-10
        return engine

    def release(self, program_id: str) -> None:
        """Forget a program that is over; it may be unknown."""
        self._pins.pop(program_id, None)
