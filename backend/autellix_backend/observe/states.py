"""The states of programs and of their calls, in the words that the API, the CLI and the page show."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class ProgramState(StrEnum):
    """What a program or an open call of it is doing; the values are those of the API."""

    WAITING_FOR_MEMORY = "waiting_for_memory"
    """A wait for KV memory: the program is inactive, or the engine has slots but no KV blocks."""
    WAITING_FOR_SLOT = "waiting_for_slot"
    """A wait for a batch slot, or for an engine that is down."""
    IN_ENGINE = "in_engine"
    """A place in an engine's batch."""
    AT_ANOTHER_GATEWAY = "at_another_gateway"
    """Another gateway has its calls, which no engine's snapshot shows: they wait there, or were just sent."""
    BETWEEN_CALLS = "between_calls"
    """No open call: the client runs a tool, waits for a person or does something else."""
    ENDED = "ended"


WORDS = {
    ProgramState.WAITING_FOR_MEMORY: "waiting for memory",
    ProgramState.WAITING_FOR_SLOT: "waiting for a slot",
    ProgramState.IN_ENGINE: "in the engine",
    ProgramState.AT_ANOTHER_GATEWAY: "at another gateway",
    ProgramState.BETWEEN_CALLS: "between calls",
    ProgramState.ENDED: "ended",
}
WAITING = frozenset({ProgramState.WAITING_FOR_MEMORY, ProgramState.WAITING_FOR_SLOT})


class EnginePhase(StrEnum):
    """What a call does in its engine."""

    PREFILL = "prefill"
    DECODE = "decode"


def state_text(state: ProgramState, phase: EnginePhase | None = None, tools: Sequence[str] = ()) -> str:
    """Return a state in words, with what an engine does or which tools the client runs."""
    if state is ProgramState.IN_ENGINE and phase is not None:
        return f"{WORDS[state]} ({phase})"
    if state is ProgramState.BETWEEN_CALLS and tools:
        return f"{WORDS[state]} (tool{'s' * (len(tools) > 1)} {', '.join(tools)})"
    return WORDS[state]
