"""The host's side of the KV cache: one piece of memory in which all layers of a block are adjacent."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
from collections.abc import Sequence

from autellix_backend.kernels.job import ALIGNMENT, Plane

logger = logging.getLogger(__name__)

_MBIND = {"x86_64": 237, "aarch64": 235}
"""The number of the system call, by machine."""
_PREFER = 1
"""Linux's MPOL_PREFERRED: other nodes serve once this one is full."""


class HostMemory:
    """Rows of equal size, one per block of the engine's cache, each with a page of every layer.

    Linux is asked for huge pages: the fewer there are, the faster a driver locks them.

    Raises:
        ValueError: if a page is not of a size that the kernels move.
        OSError: if the memory cannot be allocated.
    """

    def __init__(self, page_bytes: Sequence[int], blocks: int, node: int | None = None) -> None:
        """Allocate the memory; the system fills in each page at its first use.

        Args:
            page_bytes: The bytes of a page, by layer.
            blocks: How many rows there are.
            node: The NUMA node that should hold them, where that is known.
        """
        for size in page_bytes:
            if size % ALIGNMENT:
                raise ValueError(f"KV offload moves pages of a multiple of {ALIGNMENT} bytes, not of {size}")
        self._page_bytes = tuple(page_bytes)
        self._row_bytes = sum(page_bytes)
        self._blocks = blocks
        # Shared memory, which is what Python maps by default, gets no huge pages.
        self._memory = mmap.mmap(-1, self._row_bytes * blocks, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        self.base = ctypes.addressof(self._view)
        self.bytes = len(self._memory)
        self._advise()
        if node is not None:
            self._prefer(node)

    def plane(self, layer: int, block_bytes: int) -> Plane:
        """Return the place of one layer's pages, of which a block uses the first bytes."""
        return Plane(
            base=self.base + sum(self._page_bytes[:layer]),
            block_bytes=block_bytes,
            stride_bytes=self._row_bytes,
            blocks=self._blocks,
        )

    def close(self) -> None:
        """Give the memory back; no job may use it any more."""
        del self._view
        self._memory.close()

    def _advise(self) -> None:
        # A forked child that had the pages could make the system copy those that a device writes.
        for name in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            advice = getattr(mmap, name, None)
            if advice is None:
                continue
            try:
                self._memory.madvise(advice)
            except OSError as error:
                logger.info("The memory of KV offload goes without %s: %s", name, error.strerror)

    def _prefer(self, node: int) -> None:
        call = _MBIND.get(platform.machine())
        if call is None:
            return
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask = (ctypes.c_ulong * (node // bits + 1))()
        mask[node // bits] = 1 << node % bits
        libc = ctypes.CDLL(None, use_errno=True)
        # Linux counts one bit fewer than it is told.
        length, most = ctypes.c_ulong(self.bytes), ctypes.c_ulong(bits * len(mask) + 1)
        if libc.syscall(call, ctypes.c_void_p(self.base), length, _PREFER, mask, most, 0):
            reason = os.strerror(ctypes.get_errno())
            logger.info("The memory of KV offload is not bound to NUMA node %d: %s", node, reason)
