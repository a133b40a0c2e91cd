"""The scheduler's side: the chunks in host memory, their programs, and the state of their transfers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import LoadStoreSpec, LookupResult, OffloadKey, PrepareStoreOutput, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from autellix_backend.reports.snapshot import KvOffloadTotals
from autellix_backend.vllm_plugin.offload.metrics import add_counts
from autellix_backend.vllm_plugin.offload.policy import ProgramCachePolicy
from autellix_backend.vllm_plugin.offload.transfers import TransferReport


@dataclass(slots=True)
class _Call:
    program_id: str
    is_last: bool
    is_loadable: bool = True
    is_stored: bool = True


class ProgramOffloadingManager(CPUOffloadingManager):
    """vLLM's own manager, which also knows programs and failed transfers."""

    def __init__(
        self,
        num_chunks: int,
        *,
        enable_events: bool = False,
        store_threshold: int = 0,
        max_tracker_size: int = 64_000,
        **options: Any,
    ) -> None:
        super().__init__(
            num_chunks,
            cache_policy=ProgramCachePolicy.__name__,
            cache_policy_module_path=ProgramCachePolicy.__module__,
            enable_events=enable_events,
            store_threshold=store_threshold,
            max_tracker_size=max_tracker_size,
            **options,
        )
        assert isinstance(self._policy, ProgramCachePolicy)
        self._retention = self._policy.retention
        self.guard = self._policy.guard
        self._calls: dict[str, _Call] = {}
        self._lost_chunks: set[int] = set()
        self.tally: Counter[tuple[str, ...]] = Counter()
        """All that was ever counted, by what and, of transfers, direction."""
        self._reported: Counter[tuple[str, ...]] = Counter()

    def begin_call(self, request_id: str, program_id: str, *, is_last: bool) -> None:
        """Register a request before vLLM's side of the connector sees it."""
        if request_id not in self._calls:
            self._calls[request_id] = _Call(program_id, is_last)
            self.guard(lambda: self._retention.begin_call(program_id), None)

    def end_programs(self, program_ids: Iterable[str]) -> None:
        """Have the chunks of ended programs evicted first."""
        for program_id in program_ids:
            self.guard(partial(self._retention.end_program, program_id), None)

    def keep(self, stored: Mapping[str, bool]) -> None:
        """Note the programs whose chunks admission counts on from now on, or does not any more."""
        for program_id, is_kept in stored.items():
            self.guard(partial(self._retention.keep, program_id, is_kept=is_kept), None)

    @property
    def total_chunks(self) -> int:
        """The chunks that fit into host memory."""
        return int(self._num_chunks)

    def kept_chunks(self, program_id: str) -> int:
        """Return how many chunks are kept for a program."""
        return self.guard(lambda: len(self._retention.kept(program_id)), 0)

    def give_up_load(self, request_id: str) -> None:
        """Load nothing more for a request whose load failed: it computes what it lacks."""
        if (call := self._calls.get(request_id)) is not None:
            call.is_loadable = False

    def is_stored(self, request_id: str) -> bool:
        """Whether all full blocks of a request found room, as far as they were stored yet."""
        call = self._calls.get(request_id)
        return call is not None and call.is_stored

    def take_report(self, report: TransferReport) -> None:
        """Add the workers' counts and lost chunks, before vLLM sees the transfers end."""
        self.tally.update(report.counts)
        self._lost_chunks |= report.lost_chunks

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Return whether a chunk can be loaded for a request."""
        call = self._calls.get(req_context.req_id)
        if call is not None and not call.is_loadable:
            return LookupResult.MISS
        return super().lookup(key, req_context)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Choose where to load from."""
        self.use(req_context.req_id, keys)
        self.tally["hit_chunks",] += len(keys)
        return super().prepare_load(keys, req_context)

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Choose where to store to; None if there is no room for these chunks."""
        prepared = super().prepare_store(keys, req_context)
        if prepared is None:
            self.tally["refused_chunks",] += len(keys)
            if (call := self._calls.get(req_context.req_id)) is not None:
                call.is_stored = False
            return None
        self.tally["evicted_chunks",] += len(prepared.evicted_keys)
        self.use(req_context.req_id, keys)
        return prepared

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """Make chunks loadable, but for those whose store was given up."""
        lost = [key for key in keys if self._take_lost(key)]
        if lost:
            super().complete_store(lost, req_context, success=False)
        super().complete_store([key for key in keys if key not in lost], req_context, success=success)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Remove a call from its program."""
        super().on_request_finished(req_context)
        call = self._calls.pop(req_context.req_id, None)
        if call is not None:
            self.guard(partial(self._retention.end_call, call.program_id, is_last=call.is_last), None)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return the counts since the last call."""
        stats = super().get_stats() or OffloadingConnectorStats()
        fresh = self.tally - self._reported
        self._reported = self.tally.copy()
        add_counts(stats, fresh)
        return stats

    def totals(self) -> KvOffloadTotals:
        """Return the totals since the start that the gateway receives."""
        tally = self.tally
        return KvOffloadTotals(
            stored_bytes=tally["bytes", "store"],
            stored_transfers=tally["transfers", "store"],
            stored_s=float(tally["seconds", "store"]),
            loaded_bytes=tally["bytes", "load"],
            loaded_transfers=tally["transfers", "load"],
            loaded_s=float(tally["seconds", "load"]),
            hit_chunks=tally["hit_chunks",],
            refused_chunks=tally["refused_chunks",],
        )

    def _take_lost(self, key: OffloadKey) -> bool:
        chunk = self._policy.get(key)
        if chunk is None or chunk.is_ready or chunk.chunk_id not in self._lost_chunks:
            return False
        self._lost_chunks.remove(chunk.chunk_id)
        return True

    def use(self, request_id: str, keys: Collection[OffloadKey]) -> None:
        """Note the chunks, in the order of the context, that a request uses; some may not be stored."""
        if (call := self._calls.get(request_id)) is not None:
            self.guard(partial(self._retention.use, list(keys), call.program_id), None)
