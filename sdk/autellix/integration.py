"""The building blocks of framework integrations; not for programs, and free to change between versions."""

from __future__ import annotations

from autellix._faults import safely
from autellix._ids import ids
from autellix._instrument.patches import Patches, around, around_async
from autellix._programs.branches import FanOut, create_task
from autellix._programs.context import Progress
from autellix._programs.running import attach, running_thread, switch_to, thread_of
from autellix._programs.thread import ProgramThread
from autellix._scopes.scopes import ProgramScope, SessionScope, end_program, root_scope

__all__ = [
    "FanOut",
    "Patches",
    "ProgramScope",
    "ProgramThread",
    "Progress",
    "SessionScope",
    "around",
    "around_async",
    "attach",
    "create_task",
    "end_program",
    "ids",
    "root_scope",
    "running_thread",
    "safely",
    "switch_to",
    "thread_of",
]
