"""The choice of a swapper: the best that this machine and this installation have."""

from __future__ import annotations

from pathlib import Path

from autellix_backend.kernels.base import Swapper
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.fallback import PythonSwapper
from autellix_backend.kernels.job import SwapOptions
from autellix_backend.kernels.native import BACKENDS, LIBRARY_PATH, SwapLibrary

CHOICES = ("auto", "cuda", "cpu", "python")


def open_swapper(
    backend: str = "auto", options: SwapOptions | None = None, *, library: Path = LIBRARY_PATH
) -> Swapper:
    """Open a swapper; `auto` chooses CUDA where a device answers, else the CPU, else plain Python.

    A job for GPU memory needs `cuda`; the other two copy host memory.

    Raises:
        SwapError: an option is out of its range, or the requested back end is not available.
    """
    if backend not in CHOICES:
        raise SwapError(Code.CHOICE, "backend")
    given = options or SwapOptions()
    if backend == "python":
        return PythonSwapper()
    try:
        loaded = SwapLibrary(library)
    except OSError as error:
        if backend == "auto":
            return PythonSwapper()
        raise SwapError(Code.BACKEND, "backend") from error
    if backend == "auto":
        backend = next(one for one in reversed(BACKENDS) if loaded.has(one))
    return loaded.open(backend, given)
