"""The offloading spec that vLLM loads by name: host memory under our kernels, kept by programs."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from autellix_backend.kernels.swap import open_swapper
from autellix_backend.vllm_plugin.offload.manager import ProgramOffloadingManager
from autellix_backend.vllm_plugin.offload.metrics import definitions
from autellix_backend.vllm_plugin.offload.worker import SwapWorker


class ProgramOffloadingSpec(CPUOffloadingSpec):
    """vLLM's offload to host memory with our workers, on a CPU engine too.

    Takes the same settings; `offload_prompt_only` is off unless it is given, since a preempted call needs
    what it has written as well.

    Raises:
        ValueError: `cpu_bytes_to_use` holds not one chunk, or `canonical_layout` or `sync_load_budget_bytes`
            is asked for.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._programs: ProgramOffloadingManager | None = None
        self._swap: SwapWorker | None = None
        self.offload_prompt_only = bool(self.extra_config.get("offload_prompt_only", False))
        if config.canonical_layout:
            raise ValueError("kv_connector_extra_config: canonical_layout is not supported by autellix")
        if int(self.extra_config.get("sync_load_budget_bytes", 0)):
            # Of vLLM 0.33: the request runs in the same step, too late to compute what a failed load lacks.
            raise ValueError("kv_connector_extra_config: sync_load_budget_bytes is not supported by autellix")
        if config.worker_kv_bytes_per_block and not self.num_chunks:
            raise ValueError(
                f"kv_connector_extra_config: cpu_bytes_to_use is {self.extra_config['cpu_bytes_to_use']}; "
                f"expected at least one block of the KV cache, {self.kv_bytes_per_chunk} bytes"
            )

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Return vLLM's metrics of offloading and ours."""
        return {**super().build_metric_definitions(extra_config), **definitions()}

    def get_manager(self) -> OffloadingManager:
        """Return the scheduler's part, made once."""
        if self._programs is None:
            # What vLLM 0.33 shows of the configuration in its metrics.
            info = {"info": self.cpu_info} if hasattr(self, "cpu_info") else {}
            self._programs = ProgramOffloadingManager(
                self.num_chunks,
                enable_events=self.kv_events_config.enable_kv_cache_events,
                store_threshold=int(self.extra_config.get("store_threshold", 0)),
                max_tracker_size=int(self.extra_config.get("max_tracker_size", 64_000)),
                **info,
            )
        return self._programs

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return this worker's part, made once; each worker has host memory of its own."""
        if self._swap is None:
            is_cuda = kv_caches.tensors[0].tensor.is_cuda
            self._swap = SwapWorker(
                kv_caches,
                swapper=open_swapper("cuda" if is_cuda else "auto"),
                chunks=self.num_chunks,
                blocks_per_chunk=self.blocks_per_chunk,
            )
        return self._swap

    def _uses_shared_region(self) -> bool:
        return False
