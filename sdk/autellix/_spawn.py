"""Links what a strand spawns in this process to it: patches of threads, pools and event loops."""

from __future__ import annotations

import functools

from autellix import _scope
from autellix._safely import safely
from autellix._strand import Strand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import ModuleType
    from typing import Any

    from autellix._patching import Patches

POOL_MODULES = frozenset({"anyio._backends._asyncio", "concurrent.futures.process"})
"""Whose threads serve many jobs, and so must not inherit the scope of the first."""
WAKERS = frozenset({"asyncio.futures", "asyncio.timeouts", "_asyncio", None})
"""Modules whose callbacks wake somebody up and run no code of the user's."""
TIMED_WAKERS = WAKERS | {"asyncio.tasks"}


class Job:
    """A function given to a pool or a loop: it runs in the strand it was given from, whoever runs it."""

    __slots__ = ("function", "strand")

    def __init__(self, strand: Strand, function: Callable[..., Any]) -> None:
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


class Jobs:
    """A function that a pool calls once for each of many items: each call is a branch of its own."""

    __slots__ = ("function", "origin")

    def __init__(self, origin: Strand, function: Callable[..., Any]) -> None:
        self.origin = origin
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function for one item."""
        return Job(self.branch(), self.function)(*args, **kwargs)

    def branch(self) -> Strand:
        """Make the strand of one run."""
        origin = self.origin
        return Strand(origin.program, origin.frontier, origin.session, origin.ancestors)


_scope.BOUNDARIES.add(Job.__call__.__code__)


def _make_start(original: Callable[[Thread], None]) -> Callable[[Thread], None]:
    @functools.wraps(original)
    def start(self: Thread) -> None:
        if not _scope.is_mute() and type(self).__module__ not in POOL_MODULES:
            safely(_scope.link, self)
        original(self)

    return start


def make_mute(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that the threads and processes that it starts inherit nothing."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        was_mute = _scope.set_mute(True)
        try:
            return original(self, *args, **kwargs)
        finally:
            _scope.set_mute(was_mute)

    return run


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


def _make_map(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def map_(self: Any, *args: Any, **kwargs: Any) -> Any:
        # All jobs are submitted at once, and the first may be done before the last is.
        with _scope.Together():
            return original(self, *args, **kwargs)

    return map_


def _make_add_done_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_done_callback(self: Any, fn: Callable[..., Any]) -> Any:
        return original(self, _linked(fn, WAKERS))

    return add_done_callback


def _make_create_task(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_task(self: Any, coro: Any, **kwargs: Any) -> Any:
        if self.get_task_factory() is None:
            # asyncio's own tasks begin later: there is time to link them.
            task = original(self, coro, **kwargs)
            safely(_scope.link, task)
            return task
        strand = safely(_scope.fork)
        before = _scope.spawning(strand)
        try:
            task = original(self, coro, **kwargs)
        finally:
            _scope.spawning(before)
        safely(_scope.adopt, task, strand)
        return task

    return create_task


def _make_call_soon_threadsafe(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_soon_threadsafe(self: Any, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, _linked(callback, WAKERS), *args, **kwargs)

    return call_soon_threadsafe


def _make_call_at(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_at(self: Any, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, when, _linked(callback, TIMED_WAKERS), *args, **kwargs)

    return call_at


def _linked(callback: Callable[..., Any], wakers: frozenset[str | None]) -> Callable[..., Any]:
    if isinstance(callback, Job) or getattr(callback, "__module__", None) in wakers:
        return callback
    strand = safely(_scope.fork)
    return callback if strand is None else Job(strand, callback)


def instrument_threading(patches: Patches, module: ModuleType) -> None:
    """Link threads to the strand that starts them."""
    patches.apply(module.Thread, "start", _make_start)
    if "start" in vars(module.Timer):
        # Somebody who came first has given it a wrapper of the method that we have just replaced.
        patches.apply(module.Timer, "start", _make_start)


def instrument_pool(patches: Patches, module: ModuleType) -> None:
    """Link jobs to the strand that submits them; `map`, `run_in_executor` and `to_thread` all submit."""
    patches.apply(module.ThreadPoolExecutor, "submit", _make_submit)


def instrument_futures(patches: Patches, module: ModuleType) -> None:
    """Link callbacks of pools' futures to the strand that adds them; a worker runs them after its job."""
    patches.apply(module.Future, "add_done_callback", _make_add_done_callback)
    patches.apply(module.Executor, "map", _make_map)


def instrument_asyncio(patches: Patches, module: ModuleType) -> None:
    """Link tasks and timed callbacks to the strand that creates them, and look strands up on tasks."""
    _scope.watch_asyncio()
    patches.apply(module.BaseEventLoop, "create_task", _make_create_task)
    patches.apply(module.BaseEventLoop, "call_soon_threadsafe", _make_call_soon_threadsafe)
    patches.apply(module.BaseEventLoop, "call_at", _make_call_at)


def instrument_uvloop(patches: Patches, module: ModuleType) -> None:
    """Do the same for uvloop's loop, which is not a BaseEventLoop."""
    patches.apply(module.Loop, "create_task", _make_create_task)
    patches.apply(module.Loop, "call_soon_threadsafe", _make_call_soon_threadsafe)
    patches.apply(module.Loop, "call_at", _make_call_at)
    patches.apply(module.Loop, "call_later", _make_call_at)


def instrument_anyio(patches: Patches, module: ModuleType) -> None:
    """Link jobs of anyio's worker threads, which are reused, to the task that awaits them."""
    patches.apply(module.AsyncIOBackend, "run_sync_in_worker_thread", _make_run_sync)


def _make_run_sync(original: Callable[..., Any]) -> Any:
    # The original is bound to its class already; `apply` puts a static method in its place.
    @functools.wraps(original)
    async def run_sync_in_worker_thread(
        func: Callable[..., Any], args: Any, *more: Any, **kwargs: Any
    ) -> Any:
        strand = safely(_scope.fork)
        return await original(func if strand is None else Job(strand, func), args, *more, **kwargs)

    return staticmethod(run_sync_in_worker_thread)
