"""The parameters of a simulated engine: what a step costs, and what memory holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

__all__ = ["RESUME_KINDS", "SWAP_KINDS", "UNIT", "EngineModel"]

RESUME_KINDS = ("recompute", "swap", "host")
SWAP_KINDS = ("per_block", "bulk")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One engine; a bad value raises ValueError that names the field.

    A step in which `d` calls write a token, `p` prompt tokens are read and `a` calls are let in takes

        step_s + d * decode_s + p * prefill_s + a * call_s   seconds,

    and the time of the swaps that it waits for.
    """

    name: str = "custom"
    max_num_seqs: int = 64
    """Calls in one step at most."""
    token_budget: int = 2048
    """Tokens in one step at most, read and written; longer prompts are read in chunks."""
    step_s: float = 0.010
    decode_s: float = 0.0001
    prefill_s: float = 0.0001
    call_s: float = 0.0
    """What a call costs once each time it is let in: the host's work that steps wait for."""
    block_tokens: int = 16
    kv_blocks: int | None = None
    """KV blocks of the engine; None is as many as are ever needed."""
    has_prefix_cache: bool = True
    resume: str = "recompute"
    """How a preempted call comes by its context again: its KV blocks are left to the prefix cache, and what
    that has lost is read again, or they move to the host and back (`swap`).

    With `host` they are left to the prefix cache, and the host has a copy of the full ones, made beside the
    steps. What the cache has lost when the call comes back is loaded or read again, whichever costs less.
    """
    swap: str = "bulk"
    """How blocks move: one copy for each, or gathered into one transfer (section 4.2.2)."""
    swap_block_s: float = 0.0
    """Time of one block's bytes on the way."""
    swap_transfer_s: float = 0.0
    """What starting a transfer costs; `per_block` pays it for each block."""
    overprovisions: bool = True
    """Whether a slot freed between decisions is refilled at once."""
    holds_arrivals: bool = False
    """Whether a call that arrives between decisions is not seen before the next one."""
    source: str = ""
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "token_budget", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.token_budget < self.max_num_seqs:
            raise ValueError(f"token_budget must be at least max_num_seqs, not {self.token_budget}")
        for name in ("step_s", "decode_s", "prefill_s", "call_s", "swap_block_s", "swap_transfer_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds from 0 on, not {getattr(self, name)}")
        if not self.step_s + self.decode_s > 0:
            raise ValueError("step_s or decode_s must be above zero")
        if self.kv_blocks is not None and self.kv_blocks < 1:
            raise ValueError(f"kv_blocks must be at least 1 or null, not {self.kv_blocks}")
        if self.resume not in RESUME_KINDS:
            raise ValueError(f"resume must be one of {', '.join(RESUME_KINDS)}, not {self.resume!r}")
        if self.swap not in SWAP_KINDS:
            raise ValueError(f"swap must be one of {', '.join(SWAP_KINDS)}, not {self.swap!r}")

    @property
    def has_equal_steps(self) -> bool:
        """Whether every step takes the same time, whatever is in it."""
        return self.decode_s == 0 and self.prefill_s == 0 and self.call_s == 0

    def step_time_s(self, decodes: int, prefill_tokens: int, starts: int = 0) -> float:
        """Return the duration of a step without swaps."""
        return self.step_s + decodes * self.decode_s + prefill_tokens * self.prefill_s + starts * self.call_s

    def swap_time_s(self, blocks: int) -> float:
        """Return the time to move this many blocks of one call, in one direction."""
        if not blocks:
            return 0.0
        transfers = blocks if self.swap == "per_block" else 1
        return transfers * self.swap_transfer_s + blocks * self.swap_block_s

    def call_time_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Return the model time of a call in a full batch: what a clairvoyant expects it to be charged."""
        step_s = self.step_time_s(self.max_num_seqs, 0)
        return self.call_s + prompt_tokens * self.prefill_s + output_tokens * step_s

    def tokens_per_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return the tokens written per second by a full batch of calls that read and write so many each."""
        decode_s = (self.step_s + self.max_num_seqs * self.decode_s) / self.max_num_seqs
        return output_tokens / (output_tokens * decode_s + prompt_tokens * self.prefill_s + self.call_s)

    def times_as_fast(self, speed: float) -> EngineModel:
        """Return an engine of the same memory whose steps take so many times less."""
        if speed == 1:
            return self
        times = ("step_s", "decode_s", "prefill_s", "call_s")
        return replace(self, **{name: getattr(self, name) / speed for name in times})

    def to_mapping(self) -> dict[str, object]:
        """Return the parameters as plain JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


UNIT = EngineModel(
    name="unit",
    max_num_seqs=1,
    token_budget=1 << 30,
    step_s=1.0,
    decode_s=0.0,
    prefill_s=0.0,
    holds_arrivals=True,
    source="the paper's unit-step examples: every step takes one unit of time",
)
"""Every step is equal, and nothing but slots is scarce; set max_num_seqs."""
