"""The cost of a call on an engine, in seconds of latency: its own, and that which it adds to others.

    cost = wait_weight x wait + prefill + decode + delays + evictions

    wait       the calls that wait there and one slot more: (waiting + 1) x engine time of a mean call;
               zero while a slot is free and no call waits
    prefill    the prompt tokens that are not in the cache, at the engine's speed
    decode     a mean answer at the engine's speed; a taken slot slows the other calls by about as much as the
               batch is full, which counts as well
    delays     every running call stalls during the prefill, and the calls behind it start later:
               STALL_WEIGHT x prefill x running; and half of the waiting calls start after this one
    evictions  the contexts that it evicts from a full cache are prefilled again, with their delays, once for
               each call that their programs still make, but MOST_RECOMPUTES times at most

Prefilling what another engine has in its cache delays a whole batch, so it costs much more than its own time:
without that term programs hop between engines until no cache is of use.
"""

from __future__ import annotations

import msgspec

from autellix_backend.core.balance.base import EngineLoad

STALL_WEIGHT = 2.0
BEHIND_SHARE = 0.5
MOST_RECOMPUTES = 4.0


class MeanCall(msgspec.Struct, frozen=True, gc=False):
    """Means over finished calls and programs, since the length of an answer is unknown beforehand."""

    new_tokens: float
    """Prompt tokens that were prefilled."""
    output_tokens: float
    calls_after: float
    """Calls that a program makes after its first one."""

    def engine_s(self, load: EngineLoad) -> float:
        """Return the time that an engine with a full batch spends on such a call."""
        decode_s = self.output_tokens * load.decode_s_per_token / load.slots
        return self.new_tokens * load.prefill_s_per_token + decode_s


def cost_s(
    load: EngineLoad,
    mean: MeanCall,
    prefill_tokens: float,
    *,
    evicted_tokens: float = 0.0,
    inactive_calls: int = 0,
    wait_weight: float = 1.0,
) -> float:
    """Return the cost of a call on an engine by the formula above.

    Args:
        load: The engine.
        mean: The mean call.
        prefill_tokens: Prompt tokens that this engine has to prefill.
        evicted_tokens: Tokens of other contexts that this call evicts from its cache.
        inactive_calls: Waiting calls there that take no slot soon: those of inactive programs.
        wait_weight: The weight of waiting.
    """
    waiting = max(0, load.waiting - inactive_calls)
    prefill_s = prefill_tokens * load.prefill_s_per_token
    evicted_s = evicted_tokens * load.prefill_s_per_token
    stall = 1 + STALL_WEIGHT * load.running
    is_full = waiting > 0 or load.running >= load.slots
    wait_s = (waiting + 1) * mean.engine_s(load) if is_full else 0.0
    fullness = min(1.0, (load.running + 1) / load.slots)
    decode_s = mean.output_tokens * load.decode_s_per_token * (1 + fullness)
    own_s = prefill_s + evicted_s + mean.output_tokens * load.decode_s_per_token / load.slots
    behind_s = BEHIND_SHARE * own_s * waiting
    recomputes = min(MOST_RECOMPUTES, mean.calls_after)
    return wait_weight * wait_s + prefill_s * stall + decode_s + behind_s + recomputes * evicted_s * stall
