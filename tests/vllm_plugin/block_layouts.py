"""A process that lets vLLM's own block manager allot contexts in layouts of all kinds, and counts beside it.

Prints one JSON object: for each layout, at some lengths of a context, the blocks that vLLM has taken from its
pool and those that we count. It is a process of its own because vLLM's imports warn, and the tests treat
warnings as errors.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from math import gcd, inf, lcm
from types import SimpleNamespace
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_spec_registry
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from autellix_backend.vllm_plugin.engine_blocks import EngineBlocks
from autellix_backend.vllm_plugin.offload.connector import _token_bytes

BLOCKS = 4001
MAX_MODEL_LEN = 8192
CHUNK = 256
"""The tokens of a prefill step."""
ENCODER_TOKENS = 100
PROMPTS = (1, 15, 16, 17, 100, 127, 128, 129, 500, 1000, 1024, 2049)
DECODED = 40

_ATTENTION: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


def full(block: int = 16, **fields: Any) -> FullAttentionSpec:
    """Return layers that keep whole contexts."""
    return FullAttentionSpec(block_size=block, **_ATTENTION, **fields)


def window(tokens: int, block: int = 16, **fields: Any) -> SlidingWindowSpec:
    """Return layers that keep the end of each context."""
    return SlidingWindowSpec(block_size=block, sliding_window=tokens, **_ATTENTION, **fields)


def chunked(tokens: int, block: int = 16) -> ChunkedLocalAttentionSpec:
    """Return layers that keep the present chunk."""
    return ChunkedLocalAttentionSpec(block_size=block, attention_chunk_size=tokens, **_ATTENTION)


def state(block: int, mode: str = "align", **fields: Any) -> MambaSpec:
    """Return layers that keep a state."""
    shape = {"shapes": ((4, 4),), "dtypes": (torch.float32,)}
    return MambaSpec(block_size=block, mamba_cache_mode=mode, **shape, **fields)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The groups of layers of a model, and how vLLM runs it."""

    groups: tuple[KVCacheSpec, ...]
    has_cache: bool = True
    ranks: int = 1
    """The ranks that share each context (decode context parallelism)."""
    options: dict[str, Any] = field(default_factory=dict)


LAYOUTS = {
    "full": Layout(groups=(full(),)),
    "full, large blocks": Layout(groups=(full(528),)),
    "full, no cache": Layout(groups=(full(),), has_cache=False),
    "full, context parallel": Layout(groups=(full(),), ranks=4),
    "full, of two sizes": Layout(groups=(full(16), full(64))),
    "three groups of full": Layout(groups=(full(), full(), full())),
    # What vLLM makes of windows without its hybrid manager.
    "full with windows": Layout(groups=(full(sliding_window=64),)),
    "full with chunks": Layout(groups=(full(attention_chunk_size=64),)),
    "full and windows": Layout(groups=(full(), window(64), window(64), window(200))),
    "full and windows, larger blocks": Layout(groups=(full(16), window(64, 32))),
    "windows that keep more": Layout(groups=(full(), window(64, extra_retained_tokens=20))),
    "a window of all that fits": Layout(groups=(full(), window(MAX_MODEL_LEN))),
    "windows alone": Layout(groups=(window(64),)),
    "full and chunks": Layout(groups=(full(), chunked(256), chunked(256))),
    "full and states": Layout(groups=(full(528), state(528), state(528), state(528))),
    "full and states, drafts": Layout(
        groups=(full(128), state(128, num_speculative_blocks=2)), options={"num_prefill_lookahead": 0}
    ),
    "full and states, no cache": Layout(groups=(full(), state(MAX_MODEL_LEN, "none")), has_cache=False),
    "states alone": Layout(groups=(state(16), state(16))),
    "states alone, no cache": Layout(groups=(state(MAX_MODEL_LEN, "none"),), has_cache=False),
    "latent": Layout(groups=(MLAAttentionSpec(block_size=64, **_ATTENTION),)),
    "latent, context parallel": Layout(groups=(MLAAttentionSpec(block_size=64, **_ATTENTION),), ranks=2),
    "latent and windows": Layout(
        groups=(
            MLAAttentionSpec(block_size=64, **_ATTENTION),
            SlidingWindowMLASpec(block_size=64, sliding_window=128, **_ATTENTION),
        )
    ),
    "latent and rings": Layout(
        groups=(
            MLAAttentionSpec(block_size=64, **_ATTENTION),
            CircularBufferSpec(block_size=8, **_ATTENTION),
        ),
        has_cache=False,
    ),
    "hidden states": Layout(groups=(full(), HiddenStateCacheSpec(block_size=16, **_ATTENTION))),
    "reference windows": Layout(groups=(RSWASpec(block_size=16, rswa_window=64, **_ATTENTION),)),
    "encoder and decoder": Layout(
        groups=(full(), CrossAttentionSpec(block_size=16, **_ATTENTION)), has_cache=False
    ),
}


def make(layout: Layout) -> tuple[KVCacheManager, EngineBlocks, int]:
    """Return vLLM's manager, our count, and the tokens of a hash."""
    sizes = [spec.block_size * (layout.ranks if spec.dcp_sharded else 1) for spec in layout.groups]
    config = KVCacheConfig(
        num_blocks=BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(layout.groups)],
    )
    block = lcm(*sizes)
    hashed = gcd(*sizes) if layout.has_cache else block
    manager = KVCacheManager(
        config,
        max_model_len=MAX_MODEL_LEN,
        scheduler_block_size=block,
        hash_block_size=hashed,
        max_in_flight_tokens=CHUNK,
        enable_caching=layout.has_cache,
        dcp_world_size=layout.ranks,
    )
    scheduler = SimpleNamespace(
        kv_cache_manager=manager,
        block_size=block,
        hash_block_size=hashed,
        max_model_len=MAX_MODEL_LEN,
        vllm_config=SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_encoder_input_tokens=ENCODER_TOKENS)
        ),
    )
    return manager, EngineBlocks(scheduler), hashed


class Calls:
    """The calls of an engine with a layout, without the engine."""

    def __init__(self, layout: Layout) -> None:
        self.manager, self.ours, self._hash_tokens = make(layout)
        self.block_tokens = self.manager.coordinator.scheduler_block_size
        self._chunk = max(CHUNK, self.block_tokens)
        self._is_encoding = any(isinstance(spec, CrossAttentionSpec) for spec in layout.groups)

    @property
    def held(self) -> int:
        """The blocks that requests hold."""
        return BLOCKS - 1 - int(self.manager.block_pool.get_num_free_blocks())

    def request(self, name: str, tokens: list[int]) -> Request:
        """Return a request with a prompt."""
        return Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=DECODED),
            pooling_params=None,
            block_hasher=get_request_block_hasher(self._hash_tokens, sha256),
        )

    def start(self, name: str, tokens: list[int]) -> tuple[Request, int]:
        """Prefill the context of a new request; return it and the tokens that were in the cache."""
        request = self.request(name, tokens)
        blocks, cached, _ = self.manager.get_computed_blocks(request)
        options: dict[str, Any] = {"num_new_computed_tokens": cached, "new_computed_blocks": blocks}
        options["num_encoder_tokens"] = ENCODER_TOKENS if self._is_encoding else 0
        computed = cached
        while computed < len(tokens):
            end = min(computed + self._chunk, len(tokens))
            # As vLLM's scheduler ends chunks for linear attention, where it can.
            boundary = end // self.block_tokens * self.block_tokens
            end = boundary if computed < boundary else end
            self._allocate(request, end - computed, **options)
            request.num_computed_tokens = computed = end
            options["num_new_computed_tokens"], options["new_computed_blocks"] = 0, None
        return request, cached

    def decode(self, request: Request) -> None:
        """Decode a token of a request."""
        request.append_output_token_ids(7)
        options = {"num_encoder_tokens": ENCODER_TOKENS} if self._is_encoding else {}
        self._allocate(request, 1, **options)
        request.num_computed_tokens += 1

    def finish(self, request: Request) -> None:
        """Free the blocks of a request; those that are cached stay so."""
        self.manager.free(request)

    def _allocate(self, request: Request, tokens: int, **options: Any) -> None:
        self.manager.new_step_starts()
        assert self.manager.allocate_slots(request, tokens, **options) is not None


def play_alone(layout: Layout) -> list[tuple[int, int, int]]:
    """Return the lengths of contexts that are decoded, with vLLM's and our blocks of each."""
    found = []
    for prompt in PROMPTS:
        calls = Calls(layout)
        request, _ = calls.start("a", list(range(prompt)))
        for _ in range(DECODED):
            calls.decode(request)
            assert calls.ours.held("a") == calls.held
            found.append((request.num_tokens, calls.held, calls.ours.blocks_of(request.num_tokens)))
    return found


def play_together(layout: Layout) -> dict[str, int]:
    """Return what two calls with a common beginning hold, and what we count for them."""
    calls = Calls(layout)
    beginning = list(range(1500))
    first, _ = calls.start("a", [*beginning, *range(5000, 5400)])
    second, cached = calls.start("b", [*beginning, *range(6000, 6300)])
    for request in (first, second):
        for _ in range(DECODED):
            calls.decode(request)
    ours = calls.ours
    counted = ours.blocks_of(first.num_tokens) + ours.blocks_of(second.num_tokens, cached)
    apart = ours.held("a") + ours.held("b", ["a"])
    return {
        "cached": cached,
        "held": calls.held,
        "counted": counted,
        "apart": apart,
        "whole": ours.held("a") + ours.held("b"),
    }


def play_kept(layout: Layout) -> dict[str, Any]:
    """Let a context be kept while all other free blocks are taken; return what a next call finds of it."""
    calls = Calls(layout)
    request, _ = calls.start("a", list(range(1500)))
    for _ in range(DECODED):
        calls.decode(request)
    context, tokens = list(request.block_hashes), list(request.all_token_ids)
    ends = {
        block.block_id: (place + 1) * manager.block_size
        for manager in calls.manager.coordinator.single_type_managers
        for place, block in enumerate(manager.req_to_blocks["a"])
    }
    calls.finish(request)
    other, _ = calls.start("b", list(range(8000, 8100)))
    calls.finish(other)
    calls.ours.keep(context)
    pool, counted = calls.manager.block_pool, calls.ours.blocks_of(len(tokens))
    last = [block for block in pool.free_block_queue.get_all_free_blocks()[-counted:] if block.block_hash]
    pool.get_new_blocks(pool.get_num_free_blocks() - counted)
    _, cached, _ = calls.manager.get_computed_blocks(calls.request("c", [*tokens, 1, 2, 3]))
    return {
        "cached": cached,
        "whole": len(tokens) // calls.block_tokens * calls.block_tokens,
        "ends": [ends.get(block.block_id) for block in last],
    }


def _fits(ours: EngineBlocks, length: int) -> tuple[int, int, int]:
    """Return a length, how many contexts of it vLLM has blocks for, and how many fit by our tokens."""
    return length, (BLOCKS - 1) // ours.blocks_of(length), int(ours.capacity_tokens) // ours.fill(length, 0)


def main() -> None:
    """Print what was found."""
    init_none_hash(sha256)
    register_all_kvcache_specs(None)
    registered = {kind.__name__ for kind in kv_cache_spec_registry._REGISTRY_KVCACHESPEC_LIST}
    played = {type(spec).__name__ for layout in LAYOUTS.values() for spec in layout.groups}
    report: dict[str, Any] = {"missing": sorted(registered - played), "layouts": {}}
    for name, layout in LAYOUTS.items():
        calls = Calls(layout)
        ours = calls.ours
        tokens = ours.capacity_tokens
        report["layouts"][name] = {
            "capacity": tokens if tokens < inf else None,
            "block_tokens": ours.block_tokens,
            "token_bytes": _token_bytes(calls.manager.kv_cache_config),
            "fits": [] if tokens == inf else [_fits(ours, length) for length in PROMPTS],
            "alone": play_alone(layout),
            "together": play_together(layout) if layout.has_cache else None,
            "kept": play_kept(layout) if layout.has_cache else None,
        }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
