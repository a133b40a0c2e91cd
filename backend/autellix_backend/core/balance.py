"""Balancers: which engine gets a call.

`locality` is Algorithm 2: short calls go where there is least load, long ones where their program's cache is.
The two others are what it is held against.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["BALANCER_NAMES", "Balancer", "LeastUsed", "Locality", "RoundRobin", "least_used", "make_balancer"]

DEFAULT_THRESHOLD_TOKENS = 2048


class Balancer(Protocol):
    """Chooses engines; keeps what it has to remember of programs until they are released."""

    def assign(self, program_id: str, prompt_tokens: int, loads: Mapping[str, float]) -> str:
        """Choose the engine of a call, given the load of every live engine.

        Raises:
            ValueError: there is no engine.
        """
        ...

    def release(self, program_id: str) -> None:
        """Forget a program that is over; it may be unknown."""
        ...


def least_used(loads: Mapping[str, float]) -> str:
    """Return the engine with the least load; the first one wins a tie (Alg. 2, lines 15-20).

    Raises:
        ValueError: there is no engine.
    """
    return min(loads, key=loads.__getitem__)  # Alg. 2, line 18


class RoundRobin:
    """Engines take turns; an engine that is gone loses its turn."""

    def __init__(self) -> None:
        self._calls = 0

    def assign(self, program_id: str, prompt_tokens: int, loads: Mapping[str, float]) -> str:  # noqa: ARG002
        """Choose the next engine."""
        if not loads:
            raise ValueError("there is no engine to assign to: loads is empty")
        engine = list(loads)[self._calls % len(loads)]
        self._calls += 1
        return engine

    def release(self, program_id: str) -> None:
        """Do nothing: programs are not remembered."""


class LeastUsed:
    """Every call goes where there is least load."""

    def assign(self, program_id: str, prompt_tokens: int, loads: Mapping[str, float]) -> str:  # noqa: ARG002
        """Choose the engine with the least load."""
        return least_used(loads)

    def release(self, program_id: str) -> None:
        """Do nothing: programs are not remembered."""


class Locality:
    """Algorithm 2, with the engine each program's long calls are pinned to."""

    def __init__(self, threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS) -> None:
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


BALANCER_NAMES = ("round_robin", "least_used", "locality")


def make_balancer(name: str, threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS) -> Balancer:
    """Return a fresh balancer of this name; the threshold (tokens of prompt) is `locality`'s.

    Raises:
        ValueError: no balancer has this name; the message lists those that exist.
    """
    if name == "round_robin":
        return RoundRobin()
    if name == "least_used":
        return LeastUsed()
    if name == "locality":
        return Locality(threshold_tokens)
    raise ValueError(f"balancer must be one of {', '.join(BALANCER_NAMES)}, not {name!r}")
