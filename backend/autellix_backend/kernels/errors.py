"""The errors of swap jobs, with the codes and texts of the native library."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class Code(IntEnum):
    """The reason of a refusal or failure, by the native library's numbers."""

    text: str
    """The native library's sentence."""

    def __new__(cls, number: int, text: str = "") -> Self:
        """Attach the sentence to a number."""
        code = int.__new__(cls, number)
        code._value_ = number
        code.text = text
        return code

    NULL = 1, "a pointer is null"
    STRUCT = 2, "the structure is not of this version"
    CHOICE = 3, "the value is not one of those that exist"
    LIMIT = 4, "the number is zero or beyond its limit"
    ALIGN = 5, "the value is not a multiple of the alignment"
    STRIDE = 6, "the stride is less than a block"
    OVERFLOW = 7, "the plane reaches beyond the address space"
    MISMATCH = 8, "source and destination differ in the size of their blocks"
    RANGE = 9, "the block lies outside of a plane"
    TWICE = 10, "the destination block is written twice"
    OVERLAP = 11, "the plane overlaps another one"
    BACKEND = 12, "the back end is not in this build"
    MEMORY = 13, "memory could not be had"
    HANDLE = 14, "there is no such job, or its end was reported already"
    BUSY = 15, "too many jobs are under way"
    DEVICE = 16, "the device failed"
    PLACE = 17, "the plane lies in the wrong memory for the direction"
    PENDING = 18, "the job is still under way"
    NO_DEVICE = 19, "no CUDA device answers"
    OLD_DRIVER = 20, "the NVIDIA driver is older than the CUDA of this build"
    CAPABILITY = 21, "this build has no code for the device's compute capability"


_PLANE_PARTS = ("", ".base", ".block_bytes", ".stride_bytes", ".blocks")
FIELDS = (
    *("", "job", "strategy", "direction", "flags", "planes", "pairs"),
    *(f"{side}[{{}}]{part}" for side in ("sources", "destinations") for part in _PLANE_PARTS),
    *("pairs[{}].source", "pairs[{}].destination"),
    *("table", "context", "backend", "threads", "slot_bytes", "slots", "handle", "stats", "memory"),
)
"""Fields by the native library's numbers; `{}` is the index of the plane or pair."""


class SwapError(Exception):
    """A swap job was refused or failed; `code` is the reason, `field` the invalid part."""

    def __init__(self, code: Code, field: str, device_error: int = 0) -> None:
        device = f" (CUDA error {device_error})" if device_error else ""
        super().__init__(f"{field}: {code.text}{device}" if field else f"{code.text}{device}")
        self.code = code
        self.field = field
        self.device_error = device_error
