"""Metrics of what engines move between their own and the host's memory, from their last snapshots."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from autellix_backend.core.snapshot import KvSwapTotals

_NOTHING = KvSwapTotals(0, 0, 0.0, 0, 0, 0.0, 0, 0)


class SwapMetrics:
    """The counters of the engines that keep KV blocks in host memory; others have none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter("autellix_kv_swap_" + name, text, ("engine", *labels), registry=registry)

        self._bytes = counter("bytes", "Bytes of KV blocks that were moved.", "direction")
        self._transfers = counter("transfers", "Copies that those took.", "direction")
        self._seconds = counter("seconds", "Seconds of the copies, without queueing.", "direction")
        self._hits = counter("hit_chunks", "Chunks that were found in host memory and loaded.")
        self._refused = counter("refused_chunks", "Chunks not stored: host memory was full of others in use.")
        self.of_engines = (self._bytes, self._transfers, self._seconds, self._hits, self._refused)
        self._counted: dict[str, KvSwapTotals] = {}

    def advance(self, engine: str, totals: KvSwapTotals) -> None:
        """Count what an engine has moved since the last time."""
        before = self._counted.get(engine, _NOTHING)
        if any(new < old for new, old in zip(totals, before, strict=True)):
            # It was started again, and counts from zero.
            before = _NOTHING
        fresh = KvSwapTotals._make(new - old for new, old in zip(totals, before, strict=True))
        self._counted[engine] = totals
        moved = {
            "store": (fresh.stored_bytes, fresh.stored_transfers, fresh.stored_s),
            "load": (fresh.loaded_bytes, fresh.loaded_transfers, fresh.loaded_s),
        }
        for direction, (moved_bytes, transfers, seconds) in moved.items():
            self._bytes.labels(engine, direction).inc(moved_bytes)
            self._transfers.labels(engine, direction).inc(transfers)
            self._seconds.labels(engine, direction).inc(seconds)
        self._hits.labels(engine).inc(fresh.hit_chunks)
        self._refused.labels(engine).inc(fresh.refused_chunks)

    def forget(self, engine: str) -> None:
        """Let an engine of this name, if one comes again, count from zero."""
        self._counted.pop(engine, None)
