"""The worker's side: turns vLLM's lists of blocks into swap jobs between engine and host."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.job import Direction, Job, Plane
from autellix_backend.vllm_plugin.offload.host_memory import HostMemory
from autellix_backend.vllm_plugin.offload.transfers import TransferQueue, TransferReport

logger = logging.getLogger(__name__)


class SwapWorker(OffloadingWorker):
    """Moves blocks for one worker of the engine. Every transfer ends as a success, as vLLM wants it.

    `take_failed_loads` and `take_report` return those that failed.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, *, swapper: Swapper, chunks: int, blocks_per_chunk: int
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._swapper = swapper
        # They keep the engine's memory alive, whose addresses the planes hold.
        self._tensors = [cache.tensor for cache in kv_caches.tensors]
        pages = [cache.page_size_bytes for cache in kv_caches.tensors]
        self._host = HostMemory(pages, chunks * blocks_per_chunk, _numa_node(self._tensors[0]))
        self._near, self._far = _planes(kv_caches, self._host)
        swapper.pin(self._host.base, self._host.bytes)
        # A CPU has no bus to cross, and merged copies are the best it can do.
        self._table = swapper.calibrate() if swapper.backend == "cuda" else None
        self._queue = TransferQueue(swapper)
        self._store_chunks: dict[int, tuple[int, ...]] = {}
        self._failed_loads: set[int] = set()
        self._lost_chunks: set[int] = set()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Start to copy blocks to the host."""
        assert isinstance(dst_spec, BlockIDsLoadStoreSpec)
        self._store_chunks[job_id] = tuple(dst_spec.block_ids.tolist())
        return self._submit(job_id, Direction.STORE, src_spec, dst_spec)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Start to copy blocks back from the host."""
        del expedited  # of vLLM 0.33, for `sync_load_budget_bytes`, which the spec refuses
        return self._submit(job_id, Direction.LOAD, dst_spec, src_spec)

    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that are over."""
        results = []
        for ended in self._queue.take_ended():
            stored = self._store_chunks.pop(ended.number, ())
            if not ended.is_done and ended.direction is Direction.LOAD:
                self._failed_loads.add(ended.number)
            elif not ended.is_done:
                self._lost_chunks.update(stored)
            results.append(
                TransferResult(
                    job_id=ended.number,
                    success=True,
                    transfer_size=ended.bytes,
                    transfer_time=ended.seconds,
                )
            )
        return results

    def wait(self, job_ids: set[int]) -> None:
        """Wait for transfers to be over."""
        self._queue.wait(job_ids)

    def take_failed_loads(self) -> set[int]:
        """Return the failed loads that get_finished() has returned as done."""
        failed, self._failed_loads = self._failed_loads, set()
        return failed

    def take_report(self) -> TransferReport:
        """Return what was counted since the last time."""
        report = self._queue.take_report()
        report.lost_chunks, self._lost_chunks = self._lost_chunks, set()
        return report

    def shutdown(self) -> None:
        """Let the transfers end, and give everything back. May be called twice."""
        if not self._tensors:
            return
        self._queue.wait_for_all()
        self._swapper.unpin(self._host.base, self._host.bytes)
        self._swapper.close()
        self._host.close()
        self._tensors.clear()

    def _submit(self, job_id: int, direction: Direction, near: GPULoadStoreSpec, far: LoadStoreSpec) -> bool:
        jobs = [
            self._job(direction, near_blocks, rows, group)
            for group, (near_blocks, rows) in enumerate(self._block_lists(near, far))
            if len(near_blocks)
        ]
        self._queue.submit(job_id, direction, jobs)
        return True

    def _job(self, direction: Direction, near: Any, far: Any, group: int) -> Job:
        is_store = direction is Direction.STORE
        sides = (self._near[group], self._far[group])
        return Job(
            sources=sides[0] if is_store else sides[1],
            destinations=sides[1] if is_store else sides[0],
            pairs=array("q", np.stack((near, far) if is_store else (far, near), axis=1).tobytes()),
            direction=direction,
            table=self._table,
            # A load too: the engine may have queued the clearing of the blocks that it writes.
            after_stream=_engine_stream() if self._swapper.backend == "cuda" else None,
            is_source_stable=not is_store,
        )

    def _block_lists(self, near: GPULoadStoreSpec, far: LoadStoreSpec) -> list[tuple[Any, Any]]:
        """Return each group's blocks: those of the engine, and the host's rows for them.

        The host counts in chunks; the first of a group may be used from its middle on.
        """
        assert isinstance(far, BlockIDsLoadStoreSpec)
        per_chunk = self._blocks_per_chunk
        rows = far.block_ids.astype(np.int64)[:, None] * per_chunk + np.arange(per_chunk)
        lists = []
        near_at = chunk_at = 0
        for size, first_block in zip(near.group_sizes, near.block_indices, strict=True):
            skipped = first_block % per_chunk if size else 0
            chunks = -(-(size + skipped) // per_chunk)
            near_blocks = near.block_ids[near_at : near_at + size].astype(np.int64)
            lists.append((near_blocks, rows[chunk_at : chunk_at + chunks].ravel()[skipped : skipped + size]))
            near_at += size
            chunk_at += chunks
        assert (near_at, chunk_at) == (len(near.block_ids), len(rows))
        return lists


def _planes(
    kv_caches: CanonicalKVCaches, host: HostMemory
) -> tuple[Sequence[tuple[Plane, ...]], Sequence[tuple[Plane, ...]]]:
    """Return, for each group of layers, its planes in the engine's cache and in the host's."""
    near, far = [], []
    for refs in kv_caches.group_data_refs:
        # Layers may share memory; the largest page holds what all of them use.
        sizes: dict[int, int] = {}
        for ref in refs:
            sizes[ref.tensor_idx] = max(ref.page_size_bytes, sizes.get(ref.tensor_idx, 0))
        near.append(tuple(_near_plane(kv_caches, index, size) for index, size in sizes.items()))
        far.append(tuple(host.plane(index, size) for index, size in sizes.items()))
    return near, far


def _near_plane(kv_caches: CanonicalKVCaches, index: int, block_bytes: int) -> Plane:
    tensor = kv_caches.tensors[index].tensor
    item_bytes = tensor.element_size()
    return Plane(
        base=tensor.data_ptr(),
        block_bytes=block_bytes,
        stride_bytes=tensor.stride(0) * item_bytes,
        blocks=tensor.shape[0],
    )


def _numa_node(tensor: torch.Tensor) -> int | None:
    """Return the NUMA node of the host memory next to a GPU, as vLLM finds it; None on a CPU."""
    if not tensor.is_cuda:
        return None
    try:
        node = current_platform.get_device_numa_node(tensor.device.index)
    except Exception as error:  # noqa: BLE001 -- of vLLM or the driver: memory serves from any node
        logger.info("The NUMA node of the GPU is unknown: %s", error)
        return None
    return None if node is None else int(node)


def _engine_stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)
