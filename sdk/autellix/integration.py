"""The building blocks of framework integrations; not for programs, and free to change between versions."""

from __future__ import annotations

from autellix._faults import safely
from autellix._ids import ids
from autellix._instrument.patches import Patches, around, around_async, before, on_init, on_result
from autellix._programs.branches import FanOut, create_task
from autellix._programs.progress import Progress
from autellix._programs.running import attach, running_thread, switch_to, thread_of
from autellix._programs.thread import ProgramThread
from autellix._receipts import FIELD, keep, kept
from autellix._scopes.scopes import DetachedScope, ProgramScope, end_program, root_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "DetachedScope",
    "FanOut",
    "Patches",
    "ProgramScope",
    "ProgramThread",
    "Progress",
    "around",
    "around_async",
    "attach",
    "before",
    "create_task",
    "end_program",
    "finished_receipt",
    "ids",
    "keep_receipt",
    "on_init",
    "on_result",
    "root_scope",
    "running_thread",
    "safely",
    "switch_to",
    "thread_of",
]


def finished_receipt() -> dict[str, Any] | None:
    """Return the receipt of the call that the running thread has just finished, if it is one alone."""
    frontier = running_thread().join_finished()
    return kept(frontier[0]) if frontier is not None and len(frontier) == 1 else None


def keep_receipt(answer: object) -> None:
    """Keep the receipt of an answer that the user does not get to see."""
    extra = getattr(answer, "model_extra", None) or answer
    if isinstance(extra, dict):
        keep(extra.get(FIELD))
