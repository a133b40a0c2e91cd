"""The interface of a balancer, and the engines and calls that it sees."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.errors import NoEngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One engine at one moment; a bad value raises ValueError that names the field.

    A call that was sent but that the engine has not reported yet counts as waiting.
    """

    name: str
    running: int
    """Calls in its batch."""
    waiting: int
    """Calls outside of it."""
    slots: int
    """Calls that its batch holds at most."""
    prefill_s_per_token: float
    """Time to prefill a prompt token that is not in the prefix cache."""
    decode_s_per_token: float
    """Time between two tokens of one answer in a full batch."""
    kv_tokens: float = math.inf
    """Tokens that its KV blocks hold, the prefix cache included; infinity if unknown."""
    memory: MemoryReport | None = None
    """The last report of the engine's admission; None where all programs may run or nothing is known."""
    is_accepting: bool = True
    """Whether it takes calls: it is up and not draining."""

    def __post_init__(self) -> None:
        for name in ("running", "waiting"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, not {self.slots}")
        for name in ("prefill_s_per_token", "decode_s_per_token", "kv_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def calls(self) -> int:
        """Calls that wait or run there: the paper's measure of use."""
        return self.running + self.waiting

    @property
    def saturation(self) -> float:
        """What its programs need over what it has: contexts over KV memory, or calls over slots.

        The greater of both; above 1 programs wait. The sum over engines says how many engines' worth of
        programs there are.
        """
        calls = self.calls / self.slots
        return calls if self.memory is None else max(calls, self.memory.demand)


@dataclass(frozen=True, slots=True)
class ArrivingCall:
    """A call that needs an engine."""

    program_id: str
    prompt_tokens: int
    """The length of its prompt."""
    prefix: str = ""
    """The id of the beginning that its program's prompts share with those of others, such as instructions and
    tools; "" if unknown. That of a known program is remembered."""
    among: Collection[str] | None = None
    """The engines that can answer it, such as those with its model; None for all."""


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a call."""

    program_id: str
    engine: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that the engine had in its prefix cache; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Why a program is on its engine."""

    engine: str
    context_tokens: int
    """Its context when it came, which the engine had to find memory for."""
    wait_s: float
    """How long it was expected to wait for that memory."""
    shared_tokens: int = 0
    """The part of its prompt that other programs there were expected to share."""
    left: str | None = None
    """The engine that it was on before; None for a new program."""
    left_wait_s: float = 0.0
    """How long it was expected to wait for memory there."""


class Balancer(ABC):
    """Chooses engines, and keeps its state of each program until the program is forgotten.

    Loads come in the operator's order of engines, always the same one: the first engine wins a tie.
    """

    name: ClassVar[str]
    reads_prefixes: ClassVar[bool] = False
    """Whether it matters with which prefix a program begins."""

    @abstractmethod
    def assign(self, call: ArrivingCall, loads: Sequence[EngineLoad]) -> str:
        """Choose the engine of an arriving call, of those that can answer it and accept calls.

        Raises:
            NoEngineError: there is none.
        """

    def finished(self, call: FinishedCall) -> None:  # noqa: B027 - most have nothing to learn
        """Learn from a call that an engine has answered; program and engine may be unknown by then."""

    def forget(self, program_id: str) -> None:  # noqa: B027 - some remember no program
        """Drop a program that has ended; it may be unknown."""

    def placement(self, program_id: str) -> Placement | None:  # noqa: ARG002 - most ignore memory
        """Return why a program is on its engine; None where its memory decided nothing."""
        return None


def accepting(loads: Sequence[EngineLoad]) -> list[EngineLoad]:
    """Return the engines that accept calls.

    Raises:
        NoEngineError: there is none.
    """
    found = [load for load in loads if load.is_accepting]
    if not found:
        raise NoEngineError(len(loads))
    return found


def able(call: ArrivingCall, loads: Sequence[EngineLoad]) -> list[EngineLoad]:
    """Return those of the engines that can answer a call.

    Raises:
        NoEngineError: there is none.
    """
    found = [load for load in loads if call.among is None or load.name in call.among]
    if not found:
        raise NoEngineError(len(loads))
    return found


def least_used(loads: Sequence[EngineLoad]) -> EngineLoad:
    """Return the engine with the fewest calls; the first one wins a tie (Alg. 2, lines 15-20)."""
    return min(loads, key=lambda load: load.calls)  # Alg. 2, line 18


class LostEngines:
    """Finds the engines that stopped accepting calls, whose caches no longer count."""

    def __init__(self) -> None:
        self._engines: set[str] = set()

    def update(self, engines: Sequence[EngineLoad]) -> set[str]:
        """Return the engines of the last update that are not among those that accept calls now."""
        names = {engine.name for engine in engines}
        gone, self._engines = self._engines - names, names
        return gone
