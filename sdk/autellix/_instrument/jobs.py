"""Makes each job of Celery and dramatiq a program, named after its task or actor; keeps Dask out of all."""

from __future__ import annotations

import functools

from autellix._faults import safely
from autellix._instrument.patches import around
from autellix._programs.registry import programs
from autellix._programs.running import find_running_thread
from autellix._propagation import propagation
from autellix._scopes.scopes import DetachedScope, ProgramScope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches

MAX_OPEN = 4096
"""Celery's jobs; one that never reports its end must not stay for ever."""


class OpenJob:
    """The program of a job, until `close`."""

    __slots__ = ("_scope", "_thread")

    def __init__(self, name: str) -> None:
        # Implicit, as a web request: the run of a framework inside is a program of its own.
        self._scope = ProgramScope(name, is_implicit=True)
        self._thread = self._scope.enter_at(None)

    def close(self) -> None:
        """End the program."""
        self._scope.leave(self._thread)


def open_job(name: str) -> OpenJob | None:
    """Open the program of a job, unless it runs inside another one, such as where it was sent."""
    thread = find_running_thread()
    is_inside = thread is not None and thread.program is not programs.implicit
    if is_inside or not propagation.is_on or not programs.implicit.is_implicit:
        return None
    return OpenJob(name)


class _CeleryJobs:
    """The open jobs by task id; Celery's signals begin and end them."""

    def __init__(self) -> None:
        self._open: dict[str, OpenJob] = {}

    def begin(self, task_id: str = "", task: Any = None, **_: object) -> None:
        if len(self._open) >= MAX_OPEN:
            return
        job = safely(open_job, task.name)
        if job is not None:
            self._open[task_id] = job

    def end(self, task_id: str = "", **_: object) -> None:
        job = self._open.pop(task_id, None)
        if job is not None:
            safely(job.close)


def instrument_celery(patches: Patches, module: ModuleType) -> None:
    """Open a program around each task, by Celery's signals."""
    jobs = _CeleryJobs()
    for signal, receiver in ((module.task_prerun, jobs.begin), (module.task_postrun, jobs.end)):
        signal.connect(receiver, weak=False)
        patches.when_reverted(functools.partial(signal.disconnect, receiver))


def _open_actor(actor: Any, *_args: object, **_kwargs: object) -> OpenJob | None:
    return open_job(actor.actor_name)


def instrument_dramatiq(patches: Patches, module: ModuleType) -> None:
    """Open a program around each run of an actor."""
    patches.apply(module, "Actor.__call__", around(_open_actor))


def instrument_dask(patches: Patches, module: ModuleType) -> None:
    """Detach the threads and tasks of a client and its cluster, which serve all programs."""
    patches.apply(module, "Client.__init__", DetachedScope())
