"""Our offloading connector's worker with a script in place of copies: each takes its time in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.outputs import KVConnectorOutput

from autellix_backend.engines.vllm_command import kv_transfer_config
from autellix_backend.vllm_plugin.offload.connector import ProgramOffloadingConnector
from autellix_backend.vllm_plugin.offload.transfers import TransferReport
from autellix_backend.vllm_plugin.offload.worker import SwapWorker
from autellix_lab.sim.model import EngineModel

UNBOUNDED_BLOCKS = 1 << 20


def transfer_config(model: EngineModel, block_bytes: int) -> dict[str, object]:
    """Return vLLM's settings of an offload that holds the model's host blocks, of so many bytes each."""
    # vLLM fills its pages with whole blocks.
    alignment = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
    chunk_bytes = -(-block_bytes // alignment) * alignment
    return kv_transfer_config((model.host_blocks or UNBOUNDED_BLOCKS) * chunk_bytes)


class _ScriptedWorker(SwapWorker):
    """Copies nothing. Each direction has a link, which makes one transfer after the other."""

    def __init__(self, model: EngineModel, block_bytes: int, clock: Callable[[], float]) -> None:
        self._model = model
        self._block_bytes = block_bytes
        self._clock = clock
        self._free_s = {"load": 0.0, "store": 0.0}
        self._ends_s: dict[int, float] = {}
        self._results: dict[int, TransferResult] = {}
        self._report = TransferReport()

    @property
    def next_end_s(self) -> float | None:
        """When the next transfer ends; None if there is none."""
        return min(self._ends_s.values(), default=None)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, _dst_spec: LoadStoreSpec) -> bool:
        """Begin to store blocks."""
        return self._begin(job_id, "store", len(src_spec.block_ids))

    def submit_load(
        self, job_id: int, _src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Begin to load blocks."""
        del expedited
        seconds = self._model.swap_time_s(len(dst_spec.block_ids))
        self._report.loads.append((len(dst_spec.block_ids) * self._block_bytes, seconds))
        return self._begin(job_id, "load", len(dst_spec.block_ids))

    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that are over."""
        over = [job_id for job_id, end_s in self._ends_s.items() if end_s <= self._clock()]
        for job_id in over:
            del self._ends_s[job_id]
        return [self._results.pop(job_id) for job_id in over]

    def wait(self, job_ids: set[int]) -> None:
        """End transfers at once: the model has no time for steps that wait."""
        self._ends_s.update((job_id, self._clock()) for job_id in job_ids & self._ends_s.keys())

    def take_failed_loads(self) -> set[int]:
        """Return nothing: none fails."""
        return set()

    def take_report(self) -> TransferReport:
        """Return what was counted since the last time."""
        report, self._report = self._report, TransferReport()
        return report

    def _begin(self, job_id: int, direction: str, blocks: int) -> bool:
        seconds = self._model.swap_time_s(blocks)
        self._free_s[direction] = max(self._clock(), self._free_s[direction]) + seconds
        self._ends_s[job_id] = self._free_s[direction]
        self._report.counts["jobs", direction] += 1
        self._report.counts["bytes", direction] += blocks * self._block_bytes
        self._results[job_id] = TransferResult(
            job_id=job_id,
            success=True,
            transfer_size=blocks * self._block_bytes,
            transfer_time=seconds,
        )
        return True


class ScriptedTransfers:
    """The worker's side of our connector, used as vLLM's model runner uses it."""

    def __init__(
        self,
        config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        model: EngineModel,
        clock: Callable[[], float],
    ) -> None:
        self._connector: Any = ProgramOffloadingConnector(config, KVConnectorRole.WORKER, kv_cache_config)
        block_bytes = kv_cache_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes
        self._worker = _ScriptedWorker(model, block_bytes, clock)
        self._connector.connector_worker.worker = self._worker

    @property
    def next_end_s(self) -> float | None:
        """When the next transfer ends; None if there is none."""
        return self._worker.next_end_s

    def begin(self, output: Any) -> None:
        """Begin the transfers of a step."""
        self._connector.bind_connector_metadata(output.kv_connector_metadata)
        self._connector.handle_preemptions(output.kv_connector_metadata)
        self._connector.start_load_kv(None)
        self._connector.wait_for_save()

    def end(self, output: Any) -> KVConnectorOutput:
        """Return the transfers that are over when the step is."""
        results = self._connector.get_transfer_results(output.finished_req_ids)
        ended = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=self._connector.build_connector_worker_meta(),
        )
        self._connector.clear_connector_metadata()
        return ended
