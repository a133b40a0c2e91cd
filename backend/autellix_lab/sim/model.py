"""The parameters of a simulated engine: the cost of a step and the size of its memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

RESUME_KINDS = ("recompute", "swap", "host")
SWAP_KINDS = ("per_block", "bulk")
_STEP_TIMES = ("step_s", "decode_s", "context_s", "prefill_s", "prefill_context_s", "call_s")


def attended_pairs(start: int, tokens: int) -> float:
    """Return how many pairs of a token and an earlier one the prefill of `tokens` behind `start` has."""
    return tokens * (start + tokens / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One engine; a bad value raises ValueError that names the field.

    A step with `d` decoding calls, whose contexts have `k` tokens in all, `p` prefill tokens, which attend to
    `q` tokens in all, and `a` admitted calls takes

        step_s + d * decode_s + k * context_s + p * prefill_s + q * prefill_context_s + a * call_s   seconds,

    plus the time of the swaps that it waits for.
    """

    name: str = "custom"
    max_num_seqs: int = 64
    """Most calls in one step."""
    token_budget: int = 2048
    """Most tokens in one step, prefill and decode; longer prompts are prefilled in chunks."""
    step_s: float = 0.010
    decode_s: float = 0.0001
    context_s: float = 0.0
    """Cost of each token of context whose keys and values a step reads for a decoding call.

    With 0, `decode_s` is the cost at a typical context.
    """
    prefill_s: float = 0.0001
    prefill_context_s: float = 0.0
    """Cost of attention from one prefill token to one token before it, which makes long prompts dear."""
    call_s: float = 0.0
    """Cost of each admission of a call: host work that steps wait for."""
    block_tokens: int = 16
    block_bytes: int = 0
    """Of a block's keys and values; 0 if unknown."""
    kv_blocks: int | None = None
    """KV blocks of the engine; None is unbounded."""
    has_prefix_cache: bool = True
    resume: str = "recompute"
    """How a preempted call gets its context back.

    `recompute`: its KV blocks stay in the prefix cache, and evicted ones are recomputed. `swap`: they move to
    the host and back, and the next step waits for them, as in the paper. `host`: host memory has a copy of
    every full block, of finished calls too; evicted ones are loaded or recomputed, whichever costs less.
    Stores and loads go beside the steps, one load after the other.
    """
    host_blocks: int | None = None
    """KV blocks of host memory, with `host`; None is unbounded."""
    swap: str = "bulk"
    """How blocks move: one copy for each, or gathered into one transfer (section 4.2.2)."""
    swap_block_s: float = 0.0
    """Time to transfer one block's bytes."""
    swap_transfer_s: float = 0.0
    """Time to start a transfer; `per_block` pays it for each block."""
    overprovisions: bool = True
    """Whether a slot that becomes free between decisions is refilled at once."""
    holds_arrivals: bool = False
    """Whether calls that arrive between decisions wait for the next one."""
    source: str = ""
    """Source of the numbers."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "token_budget", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.token_budget < self.max_num_seqs:
            raise ValueError(f"token_budget must be at least max_num_seqs, not {self.token_budget}")
        for name in (*_STEP_TIMES, "swap_block_s", "swap_transfer_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds from 0 on, not {getattr(self, name)}")
        if not self.step_s + self.decode_s > 0:
            raise ValueError("step_s or decode_s must be above zero")
        if self.block_bytes < 0:
            raise ValueError(f"block_bytes must be 0 or more, not {self.block_bytes}")
        for name in ("kv_blocks", "host_blocks"):
            blocks = getattr(self, name)
            if blocks is not None and blocks < 1:
                raise ValueError(f"{name} must be at least 1 or null, not {blocks}")
        if self.resume not in RESUME_KINDS:
            raise ValueError(f"resume must be one of {', '.join(RESUME_KINDS)}, not {self.resume!r}")
        if self.swap not in SWAP_KINDS:
            raise ValueError(f"swap must be one of {', '.join(SWAP_KINDS)}, not {self.swap!r}")

    @property
    def has_equal_steps(self) -> bool:
        """Whether every step takes the same time."""
        return all(getattr(self, name) == 0 for name in _STEP_TIMES if name != "step_s")

    def step_time_s(
        self, decodes: int, prefill_tokens: int, starts: int = 0, context_tokens: float = 0, pairs: float = 0
    ) -> float:
        """Return the duration of a step without swaps; `pairs` is `q`, by attended_pairs()."""
        calls_s = starts * self.call_s
        kv_s = context_tokens * self.context_s + pairs * self.prefill_context_s
        return self.step_s + decodes * self.decode_s + prefill_tokens * self.prefill_s + calls_s + kv_s

    def prefill_time_s(self, new_tokens: int, prompt_tokens: int) -> float:
        """Return the time that the last `new_tokens` of a prompt add to steps."""
        pairs = attended_pairs(prompt_tokens - new_tokens, new_tokens)
        return new_tokens * self.prefill_s + pairs * self.prefill_context_s

    def swap_time_s(self, blocks: int) -> float:
        """Return the time to move this many blocks of one call, in one direction."""
        if not blocks:
            return 0.0
        transfers = blocks if self.swap == "per_block" else 1
        return transfers * self.swap_transfer_s + blocks * self.swap_block_s

    def call_time_s(self, new_tokens: int, output_tokens: int, prompt_tokens: int = 0) -> float:
        """Return the model time of a call in a full batch, as a clairvoyant policy expects it.

        Args:
            new_tokens: of the prompt, which the cache does not have.
            output_tokens: of the answer.
            prompt_tokens: of the whole prompt; all contexts of the batch count as long as this call's.
        """
        context_tokens = self.max_num_seqs * (prompt_tokens + output_tokens / 2)
        step_s = self.step_time_s(self.max_num_seqs, 0, 0, context_tokens)
        return self.call_s + self.prefill_time_s(new_tokens, prompt_tokens) + output_tokens * step_s

    def call_work_s(self, new_tokens: int, output_tokens: int, prompt_tokens: int) -> float:
        """Return the engine's time that a call uses up in full batches; calls of a run add up."""
        token_s = self.step_time_s(self.max_num_seqs, 0) / self.max_num_seqs
        # The first token comes with the prefill; each later one reads the prompt and the answer so far.
        context_tokens = (output_tokens - 1) * (prompt_tokens + output_tokens / 2)
        kv_s = context_tokens * self.context_s
        return self.call_s + self.prefill_time_s(new_tokens, prompt_tokens) + output_tokens * token_s + kv_s

    def tokens_per_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return the decoded tokens per second of a full batch of calls with these lengths."""
        context_tokens = self.max_num_seqs * (prompt_tokens + output_tokens / 2)
        decode_s = self.step_time_s(self.max_num_seqs, 0, 0, context_tokens) / self.max_num_seqs
        prefill_s = self.prefill_time_s(int(prompt_tokens), int(prompt_tokens))
        return output_tokens / (output_tokens * decode_s + prefill_s + self.call_s)

    def times_as_fast(self, speed: float) -> EngineModel:
        """Return an engine with the same memory and steps that are `speed` times as fast."""
        if speed == 1:
            return self
        return replace(self, **{name: getattr(self, name) / speed for name in _STEP_TIMES})

    def with_kv(self, share: float) -> EngineModel:
        """Return an engine with this share of the KV blocks, rounded down; an unbounded one stays so."""
        if self.kv_blocks is None:
            return self
        return replace(self, kv_blocks=int(self.kv_blocks * share))

    def with_host(self, gigabytes: float) -> EngineModel:
        """Return an engine with this much host memory; raise ValueError if a block's bytes are unknown."""
        if not self.block_bytes:
            raise ValueError(f"{self.name} has no block_bytes, by which host memory is counted in blocks")
        return replace(self, resume="host", host_blocks=int(gigabytes * 1e9 / self.block_bytes))

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
"""Equal steps, with only slots scarce; set max_num_seqs."""
