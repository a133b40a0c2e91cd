"""The counters of KV offload that vLLM's `/metrics` shows beside its own."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingMetricMetadata

# vLLM drops what it registered by its own name when another engine is made in the process.
PREFIX = "vllm:autellix_kv_offload_"

_BY_DIRECTION = {
    "jobs": "Transfers of contexts, or parts of one, that were done.",
    "transfers": "Copies between the engine's memory and the host's that those took.",
    "pages": "Pages that were moved: one layer's part of one block.",
    "bytes": "Bytes that were moved.",
    "seconds": "Seconds that the copies took, without queueing.",
    "retries": "Copies that failed and were tried again.",
    "failures": "Transfers that were given up; what a failed load was to bring is computed again.",
}
_PLAIN = {
    "hit_chunks": "Chunks that were found in host memory and loaded.",
    "refused_chunks": "Chunks that were not stored because host memory was full of others in use.",
    "evicted_chunks": "Chunks that made room for others.",
    "recomputed_tokens": "Tokens that host memory had and that were computed again because that is cheaper.",
}


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """Return name and meaning of every counter."""
    by_direction = {
        PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=("direction",))
        for name, text in _BY_DIRECTION.items()
    }
    plain = {PREFIX + name: OffloadingCounterMetadata(documentation=text) for name, text in _PLAIN.items()}
    return {**by_direction, **plain}


def add_counts(stats: OffloadingConnectorStats, counts: Mapping[tuple[str, ...], float]) -> None:
    """Add counts by (what, direction) or (what,) to vLLM's statistics."""
    for (name, *labels), value in counts.items():
        stats.increase_counter(PREFIX + name, value, tuple(labels))
