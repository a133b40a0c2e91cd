"""What a call costs on an engine, in seconds of latency: its own, and what it adds to others.

    cost = wait_weight x wait + reading + writing + delays + evictions

    wait       what waits there, and one slot more: (waiting + 1) x engine time of a usual call; nothing while
               a slot is free and nobody waits
    reading    the tokens of the prompt that are not in the cache, at the engine's speed
    writing    a usual answer at the engine's pace; a slot taken slows the other writers by about as much as
               the batch is full, which counts as well
    delays     every running call stands still while the prompt is read, and what comes behind it starts
               later: STALL_WEIGHT x reading x running; and half of those that wait start after this call
    evictions  what a context pushes out of a full cache is read again, once for each call that its programs
               still make, but MOST_REREADS times at most: so often a reading of it with its delays

Reading what another engine has in its cache delays a whole batch, so it costs much more than its own time:
without that term programs hop between engines until no cache is worth anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from autellix_backend.core.balance.base import EngineLoad

__all__ = ["Placement", "UsualCall", "cost_s"]

STALL_WEIGHT = 2.0
BEHIND_SHARE = 0.5
MOST_REREADS = 4.0


@dataclass(frozen=True, slots=True)
class UsualCall:
    """Means over calls and programs that ended: nobody knows the length of an answer beforehand."""

    new_tokens: float
    """Of the prompt, those that were read."""
    output_tokens: float
    calls_after: float
    """Calls that a program makes after its first one."""

    def engine_s(self, load: EngineLoad) -> float:
        """Return the time that an engine with a full batch spends on such a call."""
        write_s = self.output_tokens * load.decode_s_per_token / load.slots
        return self.new_tokens * load.prefill_s_per_token + write_s


@dataclass(frozen=True, slots=True)
class Placement:
    """A call on one of the engines."""

    read_tokens: float
    """Of its prompt, those that this engine has to read."""
    evicted_tokens: float
    """Of other programs' contexts, what its own pushes out of the cache."""


def cost_s(load: EngineLoad, placement: Placement, usual: UsualCall, wait_weight: float) -> float:
    """Return what the call costs there, as the module's first lines say."""
    read_s = placement.read_tokens * load.prefill_s_per_token
    evicted_s = placement.evicted_tokens * load.prefill_s_per_token
    stall = 1 + STALL_WEIGHT * load.running
    is_full = load.waiting > 0 or load.running >= load.slots
    wait_s = (load.waiting + 1) * usual.engine_s(load) if is_full else 0.0
    fullness = min(1.0, (load.running + 1) / load.slots)
    write_s = usual.output_tokens * load.decode_s_per_token * (1 + fullness)
    own_s = read_s + evicted_s + usual.output_tokens * load.decode_s_per_token / load.slots
    behind_s = BEHIND_SHARE * own_s * load.waiting
    rereads = min(MOST_REREADS, usual.calls_after)
    return wait_weight * wait_s + read_s * stall + write_s + behind_s + rereads * evicted_s * stall
