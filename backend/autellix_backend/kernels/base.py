"""What every swapper can do, native or not."""

from __future__ import annotations

from typing import Protocol

from autellix_backend.kernels.job import Job, SwapStats, SwapTable


class Swapper(Protocol):
    """Runs swap jobs. Any thread may call any method, but nothing may be called during or after `close`.

    A job's pairs and planes are copied when it is given; the memory that its planes describe must stay until
    the job is done. Jobs of one direction run in the order in which they were submitted.
    """

    @property
    def backend(self) -> str:
        """Return what does the work: `cuda`, `cpu` or `python`."""
        ...

    def copy(self, job: Job) -> SwapStats:
        """Do a job and wait for it.

        Raises:
            SwapError: the job was refused, and nothing copied; or it failed.
        """
        ...

    def submit(self, job: Job) -> int:
        """Queue a job and return its handle at once.

        Raises:
            SwapError: the job was refused; nothing was copied.
        """
        ...

    def poll(self, handle: int) -> SwapStats | None:
        """Return what a job came to, or None while it is under way. Its end is reported once.

        Raises:
            SwapError: the job failed, or there is no job of this handle (any more).
        """
        ...

    def wait(self, handle: int) -> SwapStats:
        """Wait for a job's end and return what it came to.

        Raises:
            SwapError: as in `poll`.
        """
        ...

    def calibrate(self) -> SwapTable:
        """Measure this machine, for `Strategy.AUTO`. Takes about a second; no job may be under way meanwhile.

        Raises:
            SwapError: there is no memory for it.
        """
        ...

    def pin(self, base: int, bytes_: int) -> None:
        """Page-lock host memory, as fast transfers of a GPU need; does nothing elsewhere.

        Raises:
            SwapError: the driver refused; nothing is pinned then.
        """
        ...

    def unpin(self, base: int, bytes_: int) -> None:
        """Undo `pin` for the same range.

        Raises:
            SwapError: the range was not pinned.
        """
        ...

    def close(self) -> None:
        """Wait for all jobs and free everything. May be called twice."""
        ...
