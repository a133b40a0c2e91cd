"""The KV connector that vLLM loads by name: its own offloading, with programs and failed loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.forward_context import ForwardContext
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, is_full_attention_spec
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from autellix_backend.core.preemption import PreemptionCosts, Resume, ResumeKind
from autellix_backend.reports.call_arguments import read_identity
from autellix_backend.reports.snapshot import KvOffloadTotals
from autellix_backend.vllm_plugin.offload.manager import ProgramOffloadingManager
from autellix_backend.vllm_plugin.offload.transfers import TransferReport
from autellix_backend.vllm_plugin.offload.worker import SwapWorker


@dataclass
class _WorkerMetadata(OffloadingWorkerMetadata):
    """A worker's metadata of a step, with our report of its transfers."""

    report: TransferReport = field(default_factory=TransferReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        both = super().aggregate(other)
        assert isinstance(both, OffloadingWorkerMetadata)
        assert isinstance(other, _WorkerMetadata)
        self.report.add(other.report)
        return _WorkerMetadata(both.completed_jobs, both.transfer_stats, self.report)


class ProgramOffloadingConnector(OffloadingConnector):
    """One object in the scheduler and one in each worker, as vLLM has it.

    The scheduler's object knows the prices of resuming (`costs`), and does not load what is cheaper to
    recompute.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.costs = PreemptionCosts()
        self._token_bytes = _token_bytes(kv_cache_config)
        self._load_requests: dict[int, str] = {}
        self._preempted: set[str] = set()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:  # noqa: ARG003 - vLLM's
        """Ask for all layers of a block side by side; vLLM ignores it where that is impossible."""
        return "BLHNC"

    # In the scheduler.

    @property
    def manager(self) -> ProgramOffloadingManager:
        """The manager of host memory."""
        manager = self.scheduler.manager
        assert isinstance(manager, ProgramOffloadingManager)
        return manager

    def on_new_request(self, request: Request) -> None:
        """Register a request with its program, then with vLLM."""
        extra_args = getattr(request.sampling_params, "extra_args", None)
        identity = read_identity(request.request_id, extra_args, getattr(request, "session_id", None))
        is_last = identity.is_last or identity.program_id == request.request_id
        self.manager.end_programs(identity.ended)
        self.manager.begin_call(request.request_id, identity.program_id, is_last=is_last)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens to load: those that are stored, unless recomputing them is cheaper."""
        tokens, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if not tokens:
            return tokens, is_async
        if request.request_id in self._preempted:
            # Its stores are flushed with this step; vLLM takes no load of it before.
            return None, False
        resume = self.manager.guard(
            lambda: self._resume(request.num_tokens - num_computed_tokens, tokens), None
        )
        if resume is None or resume.kind is ResumeKind.LOAD:
            return tokens, is_async
        self.manager.tally["recomputed_tokens",] += tokens
        return 0, False

    def load_of(self, program_id: str, tokens: int) -> tuple[float, float]:
        """Return the share of an idle program's context that would be loaded, and the seconds of that."""
        stored = self._tokens_of(self.manager.kept_chunks(program_id))
        return self.costs.load_of(tokens, stored_tokens=stored, token_bytes=self._token_bytes)

    @property
    def host_tokens(self) -> int:
        """The tokens whose chunks fit into host memory."""
        return self._tokens_of(self.manager.total_chunks)

    def _tokens_of(self, chunks: int) -> int:
        groups = self.scheduler.config.kv_group_configs
        return int(chunks // len(groups) * groups[0].tokens_per_chunk)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Begin a request's load; what the engine has in front of it is in use, too.

        vLLM offers that part neither for a load nor for a store.
        """
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            self.manager.guard(lambda: self.manager.use(request.request_id, self._keys_of(request)), None)

    def _keys_of(self, request: Request) -> list[OffloadKey]:
        """Return the keys of all full chunks of a request's prompt."""
        return [
            make_offload_key(block_hash, group.group_idx)
            for group in self.scheduler.config.kv_group_configs
            for block_hash in islice(
                request.block_hashes, group.hashes_per_chunk - 1, None, group.hashes_per_chunk
            )
        ]

    def on_preempted(self, request_id: str) -> None:
        """Remember a request that is preempted for the step being scheduled."""
        self._preempted.add(request_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return the step's transfers."""
        self._preempted.clear()
        return super().build_connector_meta(scheduler_output)

    def resume_of(self, request: Request, full_block_tokens: int) -> Resume | None:
        """Return how a running request would resume after a preemption; None if the price is unknown.

        Only the computed tokens that fill whole blocks, `full_block_tokens`, are stored.
        """
        stored = full_block_tokens if self.manager.is_stored(request.request_id) else 0
        return self._resume(request.num_computed_tokens, stored)

    def offload_totals(self) -> KvOffloadTotals:
        """Return what all workers have stored and loaded so far."""
        return self.manager.totals()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Process the workers' reports, before vLLM declares their transfers done."""
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, _WorkerMetadata):
            self.manager.take_report(meta.report)
            for moved_bytes, seconds in meta.report.loads:
                self.manager.guard(partial(self.costs.observe_load, moved_bytes, seconds), None)
        for request_id in connector_output.failed_recving or ():
            self.manager.give_up_load(request_id)
        super().update_connector_output(connector_output)

    def _resume(self, tokens: int, stored_tokens: int) -> Resume | None:
        return self.costs.resume(tokens, stored_tokens=stored_tokens, token_bytes=self._token_bytes)

    # In a worker.

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Start the step's transfers."""
        assert isinstance(self._connector_metadata, OffloadingConnectorMetadata)
        for job_id, job in self._connector_metadata.load_jobs.items():
            self._load_requests[job_id] = job.req_id
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests whose transfers are over, and those among them whose load failed."""
        results = super().get_transfer_results(finished_req_ids)
        failed = {self._load_requests[job_id] for job_id in self._swap_worker.take_failed_loads()}
        results.failed_recving |= failed
        for job_id, request_id in list(self._load_requests.items()):
            if request_id in results.finished_recving:
                del self._load_requests[job_id]
        return results

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        """Return the finished transfers and our report, for the scheduler."""
        meta = super().build_connector_worker_meta()
        if meta is None:
            return None
        report = self._swap_worker.take_report()
        return _WorkerMetadata(meta.completed_jobs, meta.transfer_stats, report)

    @property
    def _swap_worker(self) -> SwapWorker:
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        assert isinstance(worker, SwapWorker)
        return worker


def _token_bytes(kv_cache_config: KVCacheConfig) -> float:
    """Return the bytes of one token in one worker's cache, over all layers that keep whole contexts.

    What windows and states take does not grow with the tokens.
    """
    groups = kv_cache_config.kv_cache_groups
    whole = [group for group in groups if is_full_attention_spec(group.kv_cache_spec)]
    return float(
        sum(
            len(group.layer_names) * group.kv_cache_spec.page_size_bytes / group.kv_cache_spec.block_size
            for group in whole or groups
        )
    )
