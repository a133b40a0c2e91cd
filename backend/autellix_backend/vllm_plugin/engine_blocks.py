"""The KV blocks of vLLM's scheduler: what fits, who holds how many, and who was refused some."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.preemption import fit_together


class EngineBlocks:
    """The KV blocks of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        self._specs = [group.kv_cache_spec for group in self._manager.kv_cache_config.kv_cache_groups]
        # vLLM stops admitting at the first refusal, so there is at most one in a step.
        self._refused: Request | None = None
        self._refused_tokens = 0

    @property
    def capacity_tokens(self) -> float:
        """The tokens that fit into KV memory.

        Layers that keep a window of each context do not count: what they take is small and does not grow.
        """
        token_blocks = sum(
            1 / spec.block_size for spec in self._specs if getattr(spec, "sliding_window", None) is None
        )
        # One block is vLLM's null block.
        return (self._pool.num_gpu_blocks - 1) / token_blocks if token_blocks else math.inf

    @property
    def hash_block_tokens(self) -> int:
        """The tokens of a block, as vLLM hashes them."""
        return int(getattr(self._scheduler, "hash_block_size", self._scheduler.block_size))

    @property
    def is_caching(self) -> bool:
        """Whether the contexts of finished requests stay in KV memory."""
        return bool(self._manager.enable_caching)

    @property
    def loads_whole_contexts(self) -> bool:
        """Whether vLLM loads all that is found: with one group of layers it never drops a part of it."""
        has_replay = getattr(self._scheduler, "prefix_replay_tokens", 0)
        return len(self._specs) == 1 and isinstance(self._specs[0], FullAttentionSpec) and not has_replay

    @property
    def is_short(self) -> bool:
        """Whether a waiting request was refused blocks in the latest step."""
        return self._refused is not None

    def watch(self, guard: Callable[[Callable[[], None]], None]) -> None:
        """Wrap the manager's `allocate_slots` to remember refusals to waiting requests.

        Args:
            guard: Calls what it gets, and catches its errors: vLLM may pass other arguments one day.
        """
        allocate = self._manager.allocate_slots

        def allocate_slots(*args: Any, **kwargs: Any) -> Any:
            blocks = allocate(*args, **kwargs)
            if blocks is None:
                guard(lambda: self._on_refused(*args, **kwargs))
            return blocks

        self._manager.allocate_slots = allocate_slots

    def _on_refused(self, request: Request, num_new_tokens: int, *_: Any, **options: Any) -> None:
        if request.status != RequestStatus.RUNNING:
            self._refused = request
            self._refused_tokens = _wanted_tokens(request, num_new_tokens, options)

    def take_refused(self) -> Request | None:
        """Return the request that was refused blocks, once."""
        request, self._refused = self._refused, None
        return request

    def missing(self) -> int:
        """Estimate how many blocks the last refused request lacks."""
        reserve = int(getattr(self._manager, "watermark_blocks", 0))
        return int(self._of(self._refused_tokens) + reserve - self._pool.get_num_free_blocks())

    def held(self, request_id: str) -> int:
        """Return the number of blocks of a running request."""
        return sum(map(len, self._manager.get_block_ids(request_id)))

    def can_free(self, request: Request) -> bool:
        """Whether a preemption frees the blocks of a request at once."""
        return bool(self._scheduler._request_blocks_can_be_freed(request))

    def keep_contexts(self) -> bool:
        """Whether the prefix cache keeps the contexts of all requests, running and waiting."""
        requests = self._scheduler.requests.values()
        waiting = (request for request in requests if request.status != RequestStatus.RUNNING)
        needs = (self._of(request.num_tokens) for request in waiting)
        return self.is_caching and fit_together(needs, self._pool.get_num_free_blocks())

    def keep(self, hashes: Sequence[Any]) -> None:
        """Move the cached blocks of a context that no request uses behind all other free blocks.

        Those of its end are evicted first, as vLLM itself frees them.
        """
        queue = self._pool.free_block_queue
        kept = []
        for group, spec in enumerate(self._specs):
            # The hash of a block covers all tokens before it, so the last one in a larger block names that.
            # Under context parallelism a block spans more tokens than its size here: as many as a hash.
            scale = max(1, spec.block_size // self.hash_block_tokens)
            for end in range(len(hashes) // scale * scale, 0, -scale):
                for block in self._pool.get_cached_block(hashes[end - 1], [group]) or ():
                    if block.ref_cnt == 0 and not block.is_null:
                        queue.remove(block)
                        kept.append(block)
        queue.append_n(kept)

    def _of(self, tokens: int) -> int:
        """Return the blocks that `tokens` fill, in all groups of layers."""
        return sum(-(-tokens // spec.block_size) for spec in self._specs)


def _wanted_tokens(request: Request, num_new_tokens: int, options: dict[str, Any]) -> int:
    """Return the tokens that must fit before vLLM admits the request: its next chunk, or all of it."""
    if options.get("full_sequence_must_fit"):
        return int(request.num_tokens - options.get("num_new_computed_tokens", 0))
    return int(num_new_tokens)
