"""Keeps a scope that one notebook cell entered for the next cell: each runs in a task of its own."""

from __future__ import annotations

from autellix._faults import safely
from autellix._programs.registry import programs
from autellix._programs.running import find_running_thread, switch_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches
    from autellix._programs.thread import ProgramThread

ATTRIBUTE = "_autellix_thread"
"""The attribute of a shell that holds the program thread at the end of its last cell."""


def _patch_run_code(original: Callable[..., Any]) -> Callable[..., Any]:
    async def run_code(self: Any, *args: Any, **kwargs: Any) -> Any:
        safely(_continue_cells, self)
        try:
            return await original(self, *args, **kwargs)
        finally:
            safely(_keep_scope, self)

    return run_code


def _is_outside(thread: ProgramThread | None) -> bool:
    return thread is None or thread.program is programs.implicit


def _continue_cells(shell: Any) -> None:
    thread = vars(shell).get(ATTRIBUTE)
    if thread is not None and _is_outside(find_running_thread()):
        switch_to(thread)


def _keep_scope(shell: Any) -> None:
    thread = find_running_thread()
    setattr(shell, ATTRIBUTE, None if _is_outside(thread) else thread)


def instrument_ipython(patches: Patches, module: ModuleType) -> None:
    """Continue where the last cell ended."""
    patches.apply(module, "InteractiveShell.run_code", _patch_run_code)
