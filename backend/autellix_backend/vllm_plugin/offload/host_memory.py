"""The host's side of the KV cache: one piece of memory in which all layers of a block are adjacent."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from autellix_backend.kernels.job import ALIGNMENT, Plane


class HostMemory:
    """Rows of equal size, one per block of the engine's cache, each with a page of every layer.

    Raises:
        ValueError: if a page is not of a size that the kernels move.
        OSError: if the memory cannot be allocated.
    """

    def __init__(self, page_bytes: Sequence[int], blocks: int) -> None:
        for size in page_bytes:
            if size % ALIGNMENT:
                raise ValueError(f"KV offload moves pages of a multiple of {ALIGNMENT} bytes, not of {size}")
        self._page_bytes = tuple(page_bytes)
        self._row_bytes = sum(page_bytes)
        self._blocks = blocks
        # Anonymous: the system allocates each page at its first use.
        self._memory = mmap.mmap(-1, self._row_bytes * blocks)
        self._view = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        self.base = ctypes.addressof(self._view)
        self.bytes = len(self._memory)

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
