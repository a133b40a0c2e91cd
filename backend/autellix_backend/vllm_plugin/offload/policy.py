"""The cache policy that vLLM loads by name: evicts by programs, as `Retention` orders them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus

from autellix_backend.core.retention import Retention

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ProgramCachePolicy(CachePolicy):
    """Holds the chunks of host memory by key; the manager keeps the order of programs up to date.

    What vLLM relies on, the chunks and which of them may be evicted, does not depend on that order. If the
    order fails, what may be evicted goes in the order in which it became evictable.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.retention: Retention[OffloadKey] = Retention()
        self.is_degraded = False
        """Whether our part has failed and is no longer used."""
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._evictable: dict[OffloadKey, None] = {}

    def guard(self, action: Callable[[], T], otherwise: T) -> T:
        """Return the result of a part that vLLM does not depend on; `otherwise` once one has failed."""
        if self.is_degraded:
            return otherwise
        try:
            return action()
        except Exception:  # The engine's loop is not ours: a fault here must not take every request down.
            logger.exception("Autellix: host memory goes on without programs after an error")
            self.is_degraded = True
            return otherwise

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Return the chunk of a key, if there is one."""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, _req_context: ReqContext | None = None) -> None:
        """Add a chunk that is about to be stored; vLLM 0.32 does not name its request."""
        self._chunks[key] = chunk
        self.guard(lambda: self.retention.add(key), None)

    def remove(self, key: OffloadKey) -> None:
        """Drop a chunk whose store failed."""
        del self._chunks[key]
        self._evictable.pop(key, None)
        self.guard(lambda: self.retention.discard(key), None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Do nothing: the order of eviction ignores the time of the last use."""

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Evict n chunks that no transfer uses, worst first; with too few, evict none and return None."""
        if n > len(self._evictable):
            return None
        chosen = self.guard(lambda: self._first(n, self.retention.worst_first(), protected), None)
        if chosen is None:
            chosen = self._first(n, self._evictable, protected)
        if len(chosen) < n:
            return None
        evicted = [(key, self._chunks[key]) for key in chosen]
        for key in chosen:
            self.remove(key)
        return evicted

    def _first(self, n: int, keys: Iterable[OffloadKey], protected: set[OffloadKey]) -> list[OffloadKey]:
        """Return the first n keys that may be evicted, or all if there are fewer."""
        if not n:
            return []
        return list(islice((key for key in keys if key in self._evictable and key not in protected), n))

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()
        self._evictable.clear()
        self.guard(self.retention.clear, None)

    def mark_evictable(self, key: OffloadKey) -> None:
        """Allow the eviction of a chunk that no transfer uses any more."""
        self._evictable[key] = None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Forbid the eviction of a chunk that a transfer uses."""
        self._evictable.pop(key, None)
