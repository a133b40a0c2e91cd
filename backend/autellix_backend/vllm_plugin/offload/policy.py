"""The cache policy that vLLM loads by name: evicts by programs, as `Retention` orders them."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus

from autellix_backend.vllm_plugin.offload.retention import Retention

__all__ = ["ProgramCachePolicy"]


class ProgramCachePolicy(CachePolicy):
    """Holds the chunks of host memory by key. Who uses them is told to its `retention`, by the manager."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.retention = Retention()
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._evictable: set[OffloadKey] = set()

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Return the chunk of a key, if there is one."""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """Take in a chunk that is about to be stored."""
        self._chunks[key] = chunk
        self.retention.add(key)

    def remove(self, key: OffloadKey) -> None:
        """Forget a chunk whose store failed."""
        del self._chunks[key]
        self._evictable.discard(key)
        self.retention.discard(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Do nothing: when a chunk was used last does not count here."""

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Give up n chunks that no transfer uses, the worst first; None, and nothing done, if too few."""
        if n > len(self._evictable):
            return None
        chosen: list[OffloadKey] = []
        for name in self.retention.worst_first() if n else ():
            key = OffloadKey(name)
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
        """Forget all chunks."""
        self._chunks.clear()
        self._evictable.clear()
        self.retention.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        """Note that no transfer uses the chunk any more."""
        self._evictable.add(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Note that a transfer uses the chunk."""
        self._evictable.discard(key)
