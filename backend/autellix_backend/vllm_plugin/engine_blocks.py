"""The KV blocks of vLLM's scheduler: what fits, who holds how many, and who was refused some."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import itemgetter
from typing import Any

from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    CrossAttentionSpec,
    HiSparseHotSpec,
)
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.admission.contexts import KvFill, fill_blocks
from autellix_backend.core.preemption import fit_together

_CONSTANT = (CircularBufferSpec, CrossAttentionSpec, HiSparseHotSpec)
"""Specs of layers that hold the same number of blocks for every running request."""


class BlockGroup:
    """The blocks of a group of layers, as the group's manager in vLLM allots them."""

    def __init__(self, manager: Any, vllm_config: Any, max_model_len: int) -> None:
        spec = manager.kv_cache_spec
        self.block_tokens = int(manager.block_size)
        self._manager = manager
        self._is_constant = isinstance(spec, _CONSTANT)
        # Linear attention keeps a state for each token that is drafted.
        self._added = int(getattr(manager, "num_speculative_blocks", 0))
        if self._is_constant:
            self._added = spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes
        self.grows = not self._is_constant and self.first_needed(max_model_len) == 0
        """Whether it keeps whole contexts, and not just a window or a state."""
        self.is_plain = self.grows and not self._added
        """Whether it keeps whole contexts and nothing else."""

    def first_needed(self, tokens: int) -> int:
        """Return the first token of a context that the layers need for its latest one."""
        return max(0, int(self._manager.get_num_skipped_tokens(tokens - 1)))

    def blocks(self, tokens: int, counted: int = 0) -> int:
        """Return the blocks of a context while it is decoded, beside those that the first tokens fill."""
        if self._is_constant:
            return self._added
        first = counted if self.grows else max(counted, self.first_needed(tokens))
        return max(0, -(-tokens // self.block_tokens) - first // self.block_tokens) + self._added

    def new(self, tokens: int, held: int) -> int:
        """Return the most blocks that a context of so many tokens takes beside those that it holds."""
        return max(0, -(-tokens // self.block_tokens) - held) + self._added

    def most_new(self, requests: int, tokens: int, ahead: int) -> int:
        """Return the most blocks that some requests take for a number of tokens.

        Args:
            requests: How many they are.
            tokens: The new tokens of all together.
            ahead: The tokens for which each gets blocks beyond its own.
        """
        each = 1 + self._added - (-ahead // self.block_tokens)
        return requests * each - (-tokens // self.block_tokens)


class EngineBlocks:
    """The KV blocks of one scheduler.

    vLLM takes all blocks from one pool, and a context fills some in each group of layers. Admission counts in
    tokens: a block is worth as many as the contexts have, for each block that they fill in the groups that
    keep them whole. What the other groups hold for a context counts at the same price.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        managers = self._manager.coordinator.single_type_managers
        self._groups = {
            number: BlockGroup(manager, scheduler.vllm_config, scheduler.max_model_len)
            for number, manager in enumerate(managers)
            # The others have a pool of their own, in host memory.
            if manager.block_pool is self._pool
        }
        blocks_per_token = sum(Fraction(1, each.block_tokens) for each in self._groups.values() if each.grows)
        self._tokens_per_block = 1 / blocks_per_token if blocks_per_token else None
        groups = list(self._groups.values())
        is_plain = len(groups) == 1 and groups[0].is_plain
        self.fill: KvFill = fill_blocks(groups[0].block_tokens) if is_plain else self._fill
        """Returns the KV memory (tokens) that a context fills beside its first tokens."""
        self._unwatched: Any = None
        """The manager's `allocate_slots`, while it is wrapped."""
        # vLLM stops admitting at the first refusal, so there is at most one in a step.
        self._refused: Request | None = None
        self._refused_blocks = 0

    @property
    def capacity_tokens(self) -> float:
        """The tokens that fit into KV memory; infinity where no group of layers keeps whole contexts."""
        # One block is vLLM's null block.
        total = self._pool.num_gpu_blocks - 1
        return math.inf if self._tokens_per_block is None else int(total * self._tokens_per_block)

    @property
    def block_tokens(self) -> int:
        """The tokens of whole contexts that a block is worth, as all tokens over all blocks."""
        return int(self._tokens_per_block or self._scheduler.block_size) or 1

    def _fill(self, tokens: int, counted: int) -> int:
        worth = self._tokens_per_block
        assert worth is not None, "nothing counts where contexts do not grow"
        # Rounded up, and not by the arithmetic of fractions, which takes longer than all the rest.
        return -(-self.blocks_of(tokens, counted) * worth.numerator // worth.denominator)

    def blocks_of(self, tokens: int, counted: int = 0) -> int:
        """Return the blocks that a context fills in all groups of layers beside its first tokens."""
        return sum(group.blocks(tokens, counted) for group in self._groups.values()) if tokens else 0

    @property
    def hash_block_tokens(self) -> int:
        """The tokens of a block, as vLLM hashes them."""
        return int(getattr(self._scheduler, "hash_block_size", self._scheduler.block_size))

    @property
    def is_caching(self) -> bool:
        """Whether the contexts of finished requests stay in KV memory."""
        return bool(self._manager.enable_caching)

    @property
    def is_short(self) -> bool:
        """Whether a waiting request was refused blocks in the latest step."""
        return self._refused is not None

    def may_run_out(self) -> bool:
        """Whether the running requests may need more blocks in the next step than are free.

        They may be given fewer tokens than are counted here, and free some blocks themselves.
        """
        scheduler, running = self._scheduler, self._scheduler.running
        free, budget = self._pool.get_num_free_blocks(), int(scheduler.max_num_scheduled_tokens)
        ahead = int(scheduler.num_lookahead_tokens)
        most = sum(group.most_new(len(running), budget, ahead) for group in self._groups.values())
        if most <= free:
            return False
        needed = 0
        for request in running:
            tokens = request.num_tokens_with_spec + request.num_output_placeholders
            tokens = min(tokens, request.num_computed_tokens + budget) + ahead
            held = self._manager.get_blocks(request.request_id).blocks
            needed += sum(group.new(tokens, len(held[number])) for number, group in self._groups.items())
            if needed > free:
                return True
        return False

    def watch(self, guard: Callable[[Callable[[], None]], None]) -> None:
        """Remember refusals to waiting requests until `end_watch`, by a wrapper of `allocate_slots`.

        vLLM allocates blocks to all running requests before it looks at the first waiting one, so the wrapper
        comes with that look: in most steps it is not there at all.

        Args:
            guard: Calls what it gets, and catches its errors: vLLM may pass other arguments one day.
        """
        if self._unwatched is not None:
            return
        allocate = self._unwatched = self._manager.allocate_slots

        def allocate_slots(*args: Any, **kwargs: Any) -> Any:
            blocks = allocate(*args, **kwargs)
            if blocks is None:
                guard(lambda: self._on_refused(*args, **kwargs))
            return blocks

        self._manager.allocate_slots = allocate_slots

    def end_watch(self) -> None:
        """Leave vLLM's method as it is."""
        if self._unwatched is not None:
            self._manager.allocate_slots, self._unwatched = self._unwatched, None

    def _on_refused(self, request: Request, num_new_tokens: int, *_: Any, **options: Any) -> None:
        if request.status != RequestStatus.RUNNING:
            self._refused = request
            self._refused_blocks = self._wanted_blocks(request, num_new_tokens, options)

    def take_refused(self) -> Request | None:
        """Return the request that was refused blocks, once."""
        request, self._refused = self._refused, None
        return request

    def missing(self) -> int:
        """Estimate how many blocks the last refused request lacks."""
        reserve = int(getattr(self._manager, "watermark_blocks", 0))
        return int(self._refused_blocks + reserve - self._pool.get_num_free_blocks())

    def held(self, request_id: str, others: Sequence[str] = ()) -> int:
        """Return the number of blocks of a running request, without those that one of `others` holds too."""
        held = self._manager.get_blocks(request_id).blocks
        if others:
            of_others = {
                block.block_id
                for other in others
                for blocks in self._manager.get_blocks(other).blocks
                for block in blocks
            }
            mine = (block for number in self._groups for block in held[number])
            return sum(not block.is_null and block.block_id not in of_others for block in mine)
        # In place of blocks that are no longer needed, vLLM has its null block.
        return sum(
            len(held[number]) if group.grows else sum(not block.is_null for block in held[number])
            for number, group in self._groups.items()
        )

    def can_free(self, request: Request) -> bool:
        """Whether a preemption frees the blocks of a request at once."""
        return bool(self._scheduler._request_blocks_can_be_freed(request))

    def keep_contexts(self) -> bool:
        """Whether the prefix cache keeps the contexts of all requests, running and waiting."""
        requests = self._scheduler.requests.values()
        # A connector may still hold the blocks of one that has finished.
        waiting = (r for r in requests if r.status != RequestStatus.RUNNING and not r.is_finished())
        needs = (self.blocks_of(request.num_tokens) for request in waiting)
        return self.is_caching and fit_together(needs, self._pool.get_num_free_blocks())

    def keep(self, hashes: Sequence[Any]) -> None:
        """Move the cached blocks of a context that no request uses behind all other free blocks.

        Those of its end are evicted first, as vLLM itself frees them.
        """
        queue = self._pool.free_block_queue
        per_hash = self.hash_block_tokens
        kept = []
        for number, group in self._groups.items():
            # The hash of a block covers all tokens before it, so the last one in a larger block names that.
            scale = max(1, group.block_tokens // per_hash)
            last = len(hashes) // scale * scale
            first = 0 if group.grows else group.first_needed(last * per_hash + 1) // per_hash
            for end in range(last, first, -scale):
                for block in self._pool.get_cached_block(hashes[end - 1], [number]) or ():
                    if block.ref_cnt == 0 and not block.is_null:
                        queue.remove(block)
                        kept.append((end, block))
        # Once a part of the end is gone from one group, the others' are of no use.
        queue.append_n([block for _, block in sorted(kept, key=itemgetter(0), reverse=True)])

    def _wanted_blocks(self, request: Request, num_new_tokens: int, options: dict[str, Any]) -> int:
        """Return the blocks without which vLLM admits no request: for its next chunk, or all of it."""
        computed = request.num_computed_tokens + (options.get("num_new_computed_tokens") or 0)
        is_whole = options.get("full_sequence_must_fit")
        return self.blocks_of(request.num_tokens if is_whole else computed + num_new_tokens, computed)
