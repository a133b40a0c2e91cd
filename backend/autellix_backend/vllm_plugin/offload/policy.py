"""The cache policy that vLLM loads by name: evicts by programs, as `Retention` orders them."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus

from autellix_backend.core.retention import Retention


class ProgramCachePolicy(CachePolicy):
    """Holds the chunks of host memory by key; the manager keeps its `retention` up to date."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.retention: Retention[OffloadKey] = Retention()
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._evictable: set[OffloadKey] = set()

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Return the chunk of a key, if there is one."""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, _req_context: ReqContext | None = None) -> None:
        """Add a chunk that is about to be stored; vLLM 0.32 does not name its request."""
        self._chunks[key] = chunk
        self.retention.add(key)

    def remove(self, key: OffloadKey) -> None:
        """Drop a chunk whose store failed."""
        del self._chunks[key]
        self._evictable.discard(key)
        self.retention.discard(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Do nothing: the order of eviction ignores the time of the last use."""

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Evict n chunks that no transfer uses, worst first; with too few, evict none and return None."""
        if n > len(self._evictable):
            return None
        chosen: list[OffloadKey] = []
        for key in self.retention.worst_first() if n else ():
            if key in self._evictable and key not in protected:
                chosen.append(key)
                if len(chosen) == n:
                    break
        if len(chosen) < n:
            return None
        evicted = [(key, self._chunks[key]) for key in chosen]
        for key in chosen:
            self.remove(key)
        return evicted

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()
        self._evictable.clear()
        self.retention.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        """Allow the eviction of a chunk that no transfer uses any more."""
        self._evictable.add(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Forbid the eviction of a chunk that a transfer uses."""
        self._evictable.discard(key)
