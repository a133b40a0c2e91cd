"""The errors of swap jobs, with the codes and texts of the native library."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The reason of a refusal or failure, by the native library's numbers."""

    NULL = 1
    STRUCT = 2
    CHOICE = 3
    LIMIT = 4
    ALIGN = 5
    STRIDE = 6
    OVERFLOW = 7
    MISMATCH = 8
    RANGE = 9
    TWICE = 10
    OVERLAP = 11
    BACKEND = 12
    MEMORY = 13
    HANDLE = 14
    BUSY = 15
    DEVICE = 16
    PLACE = 17
    PENDING = 18


TEXTS = {
    Code.NULL: "a pointer is null",
    Code.STRUCT: "the structure is not of this version",
    Code.CHOICE: "the value is not one of those that exist",
    Code.LIMIT: "the number is zero or beyond its limit",
    Code.ALIGN: "the value is not a multiple of the alignment",
    Code.STRIDE: "the stride is less than a block",
    Code.OVERFLOW: "the plane reaches beyond the address space",
    Code.MISMATCH: "source and destination differ in the size of their blocks",
    Code.RANGE: "the block lies outside of a plane",
    Code.TWICE: "the destination block is written twice",
    Code.OVERLAP: "the plane overlaps another one",
    Code.BACKEND: "the back end is not in this build, or has no device",
    Code.MEMORY: "memory could not be had",
    Code.HANDLE: "there is no such job, or its end was reported already",
    Code.BUSY: "too many jobs are under way",
    Code.DEVICE: "the device failed",
    Code.PLACE: "the plane lies in the wrong memory for the direction",
    Code.PENDING: "the job is still under way",
}

FIELDS = (
    "",
    "job",
    "strategy",
    "direction",
    "flags",
    "planes",
    "pairs",
    "sources[{}]",
    "sources[{}].base",
    "sources[{}].block_bytes",
    "sources[{}].stride_bytes",
    "sources[{}].blocks",
    "destinations[{}]",
    "destinations[{}].base",
    "destinations[{}].block_bytes",
    "destinations[{}].stride_bytes",
    "destinations[{}].blocks",
    "pairs[{}].source",
    "pairs[{}].destination",
    "table",
    "context",
    "backend",
    "threads",
    "slot_bytes",
    "slots",
    "handle",
    "stats",
    "memory",
)
"""Fields by the native library's numbers; `{}` is the index of the plane or pair."""


class SwapError(Exception):
    """A swap job was refused or failed; `code` is the reason, `field` the invalid part."""

    def __init__(self, code: Code, field: str, device_error: int = 0) -> None:
        device = f" (CUDA error {device_error})" if device_error else ""
        super().__init__(f"{field}: {TEXTS[code]}{device}" if field else f"{TEXTS[code]}{device}")
        self.code = code
        self.field = field
        self.device_error = device_error
