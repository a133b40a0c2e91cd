"""Links what a strand spawns to it: patches of threads, thread pools and event loops."""

from __future__ import annotations

import functools

from autellix import _scope
from autellix._safely import safely

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import ModuleType
    from typing import Any

    from autellix._patching import Patches


class Job:
    """A function given to a pool: it runs in the strand it was submitted from, whichever worker takes it."""

    __slots__ = ("function", "strand")

    def __init__(self, strand: _scope.Strand, function: Callable[..., Any]) -> None:
        self.strand = strand
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function in its strand, then leave the worker as it was."""
        before = _scope.swap(self.strand)
        try:
            return self.function(*args, **kwargs)
        finally:
            self.strand.is_closed = True
            _scope.swap(before)


def _make_start(original: Callable[[Thread], None]) -> Callable[[Thread], None]:
    @functools.wraps(original)
    def start(self: Thread) -> None:
        if not _scope.is_mute():
            safely(_link, self)
        original(self)

    return start


def _link(holder: object) -> None:
    _scope.adopt(holder, _scope.fork())


def _make_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        strand = safely(_scope.fork)
        # A worker that the pool starts for this job outlives it and must not inherit its strand.
        was_mute = _scope.set_mute(True)
        try:
            return original(self, fn if strand is None else Job(strand, fn), *args, **kwargs)
        finally:
            _scope.set_mute(was_mute)

    return submit


def _make_create_task(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_task(self: Any, coro: Any, **kwargs: Any) -> Any:
        strand = safely(_scope.fork)
        before = _scope.spawning(strand)
        try:
            task = original(self, coro, **kwargs)
        finally:
            _scope.spawning(before)
        safely(_scope.adopt, task, strand)
        return task

    return create_task


def instrument_threading(patches: Patches, module: ModuleType) -> None:
    """Link threads to the strand that starts them."""
    patches.apply(module.Thread, "start", _make_start)


def instrument_pool(patches: Patches, module: ModuleType) -> None:
    """Link jobs to the strand that submits them; `map`, `run_in_executor` and `to_thread` all submit."""
    patches.apply(module.ThreadPoolExecutor, "submit", _make_submit)


def instrument_asyncio(patches: Patches, module: ModuleType) -> None:
    """Link tasks to the strand that creates them, and look strands up on tasks."""
    _scope.watch_asyncio()
    patches.apply(module.BaseEventLoop, "create_task", _make_create_task)


def instrument_uvloop(patches: Patches, module: ModuleType) -> None:
    """Link the tasks of uvloop's loop, which is not a BaseEventLoop."""
    patches.apply(module.Loop, "create_task", _make_create_task)
