"""The interface of swappers, native or not."""

from __future__ import annotations

from typing import Protocol

from autellix_backend.kernels.job import Job, SwapStats, SwapTable


class Swapper(Protocol):
    """Runs swap jobs. Any thread may call any method, but nothing may be called during or after `close`.

    A job's pairs and planes are copied at the call; the memory that the planes describe must stay valid until
    the job is done. The memories are left as if jobs ran in the order of their submission, but those that
    touch different blocks may overlap, and end in any order.

    Any method but `close` may raise a SwapError: a refused job copies nothing, and one that fails later
    raises where its result is reported.
    """

    @property
    def backend(self) -> str:
        """The back end: `cuda`, `cpu` or `python`."""

    def submit(self, job: Job) -> int:
        """Queue a job and return its handle at once."""

    def poll(self, handle: int) -> SwapStats | None:
        """Return the result of a job, None while it runs; it is reported once."""

    def wait(self, handle: int) -> SwapStats:
        """Wait for a job and return its result; it is reported once."""

    def calibrate(self) -> SwapTable:
        """Measure this machine for `Strategy.AUTO`, in about a second; no job may run meanwhile.

        A back end with only one strategy refuses.
        """

    def pin(self, base: int, bytes_: int) -> None:
        """Page-lock host memory for fast transfers of a GPU; do nothing elsewhere."""

    def unpin(self, base: int, bytes_: int) -> None:
        """Undo `pin` for the same range."""

    def close(self) -> None:
        """Wait for all jobs and free everything. May be called twice."""
