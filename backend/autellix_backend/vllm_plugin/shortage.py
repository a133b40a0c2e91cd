"""KV block shortage: the request that was last refused blocks, and whether all contexts fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.preemption import fit_together

__all__ = ["BlockShortage", "keeps_contexts", "watch_allocations"]


class BlockShortage:
    """The latest refusal; vLLM stops admitting at the first one, so one is all there is in a step."""

    def __init__(self) -> None:
        self._request: Request | None = None
        self._tokens = 0

    def note(self, request: Request, tokens: int) -> None:
        """Remember a waiting request that could not get blocks for so many tokens."""
        self._request = request
        self._tokens = tokens

    @property
    def is_pending(self) -> bool:
        """Whether the latest step had a refusal, not yet taken."""
        return self._request is not None

    def take(self) -> Request | None:
        """Return the refused request once."""
        request, self._request = self._request, None
        return request

    def missing_blocks(self, kv_cache_manager: Any) -> int:
        """Estimate how many blocks the last refused request lacks."""
        needed = blocks_of(kv_cache_manager, self._tokens)
        reserve = int(getattr(kv_cache_manager, "watermark_blocks", 0))
        return int(needed + reserve - kv_cache_manager.block_pool.get_num_free_blocks())


def blocks_of(kv_cache_manager: Any, tokens: int) -> int:
    """Return the KV blocks of so many tokens, in all groups of layers."""
    groups = kv_cache_manager.kv_cache_config.kv_cache_groups
    return sum(-(-tokens // group.kv_cache_spec.block_size) for group in groups)


def keeps_contexts(kv_cache_manager: Any, waiting: Iterable[Request]) -> bool:
    """Return whether the prefix cache keeps the contexts of all requests, running and waiting."""
    needs = (blocks_of(kv_cache_manager, request.num_tokens) for request in waiting)
    room = kv_cache_manager.block_pool.get_num_free_blocks()
    return bool(kv_cache_manager.enable_caching) and fit_together(needs, room)


def watch_allocations(kv_cache_manager: Any, shortage: BlockShortage) -> None:
    """Wrap the manager's `allocate_slots` to remember refusals to waiting requests."""
    allocate = kv_cache_manager.allocate_slots

    def allocate_slots(request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        blocks = allocate(request, num_new_tokens, *args, **kwargs)
        if blocks is None and request.status != RequestStatus.RUNNING:
            shortage.note(request, _wanted_tokens(request, num_new_tokens, kwargs))
        return blocks

    kv_cache_manager.allocate_slots = allocate_slots


def _wanted_tokens(request: Request, num_new_tokens: int, options: dict[str, Any]) -> int:
    """Return the tokens that must fit before vLLM admits the request: its next chunk, or all of it."""
    if options.get("full_sequence_must_fit"):
        return int(request.num_tokens - options.get("num_new_computed_tokens", 0))
    return int(num_new_tokens)
