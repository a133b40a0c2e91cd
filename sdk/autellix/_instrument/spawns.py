"""Links what a program spawns in this process: patches of threads, pools and event loops."""

from __future__ import annotations

import functools
import sys

from autellix._faults import safely
from autellix._instrument.patches import on_result
from autellix._programs.branches import BranchCall, FanOut, as_job, create_task, link, link_task, new_branch
from autellix._programs.running import state, trio_carrier
from autellix._propagation import Suppressed, suppression

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches

POOL_MODULES = frozenset({"anyio._backends._asyncio", "concurrent.futures.process"})
"""Modules whose threads serve many jobs, and so must not inherit the scope of the first."""
WAKERS = frozenset({"asyncio.futures", "asyncio.timeouts", "_asyncio", None})
"""Modules whose callbacks only wake a waiter and run no user code."""
COROUTINE_FLAG = 0x80
"""Of code objects: coroutine functions."""
TIMED_WAKERS = WAKERS | {"asyncio.tasks"}

CLOSING = "async_generator_athrow"
"""The type of what an event loop closes an abandoned generator with: where that was found means nothing."""


def _patch_start(original: Callable[..., None]) -> Callable[..., None]:
    def start(self: Thread, *args: Any, **kwargs: Any) -> None:
        if not suppression.is_on and type(self).__module__ not in POOL_MODULES:
            safely(link, self)
        original(self, *args, **kwargs)

    return start


def suppress_spawns(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch a method so that the threads and processes that it starts inherit nothing."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with Suppressed():
            return original(self, *args, **kwargs)

    return run


def link_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch a method whose first argument is a job, to link the job to the code that submits it."""

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        job = fn if _has_interpreters(self) else safely(as_job, fn) or fn
        # A worker that the pool starts for this job outlives it and must not inherit its program.
        with Suppressed():
            return original(self, job, *args, **kwargs)

    return submit


def _has_interpreters(pool: Any) -> bool:
    """Return whether a pool pickles its jobs for other interpreters, where they are in no program."""
    module = sys.modules.get("concurrent.futures.interpreter")
    return module is not None and isinstance(pool, module.InterpreterPoolExecutor)


def _patch_map(original: Callable[..., Any]) -> Callable[..., Any]:
    def map_(self: Any, *args: Any, **kwargs: Any) -> Any:
        # All jobs are submitted at once, and the first may finish before the last is submitted.
        with FanOut():
            return original(self, *args, **kwargs)

    return map_


def _patch_add_done_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_done_callback(self: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, safely(_linked, fn, WAKERS) or fn, *args, **kwargs)

    return add_done_callback


def _patch_create_task(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_task_(self: Any, *args: Any, **kwargs: Any) -> Any:
        has_factory = self.get_task_factory() is not None
        follows = True
        if kwargs or has_factory:
            follows = not safely(_is_detached, self, kwargs.get("context"))
            if has_factory or kwargs.get("eager_start"):
                return create_task(functools.partial(original, self, *args, **kwargs), follows=follows)
        # Its first step comes later, so there is time to link it.
        task = original(self, *args, **kwargs)
        if follows:
            safely(link_task, task)
        return task

    return create_task_


def _is_detached(loop: Any, context: Any) -> bool:
    """Return whether a task is made with a context that is no copy of the current one, as a worker is.

    A copy has the variables that were set when it was made. Where none is set, a fresh context looks like a
    copy; and outside of tasks an event loop starts its main task in a context that it made before.
    """
    if context is None or state.current_task(loop) is None:
        return False
    # A handle takes a copy of the current one.
    current = sys.modules["asyncio"].Handle(int, (), loop)._context
    return bool(current) and not any(context.get(variable) is current[variable] for variable in current)


def _patch_eager_factory(original: Callable[..., Any]) -> Callable[..., Any]:
    def eager_task_factory(loop: Any, *args: Any, **kwargs: Any) -> Any:
        follows = not safely(_is_detached, loop, kwargs.get("context"))
        return create_task(functools.partial(original, loop, *args, **kwargs), follows=follows)

    return eager_task_factory


def _patch_call_soon_threadsafe(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_soon_threadsafe(self: Any, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not (args and type(args[0]).__name__ == CLOSING):
            callback = safely(_linked, callback, WAKERS) or callback
        return original(self, callback, *args, **kwargs)

    return call_soon_threadsafe


def _patch_call_at(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_at(self: Any, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, when, safely(_linked, callback, TIMED_WAKERS) or callback, *args, **kwargs)

    return call_at


def _linked(callback: Callable[..., Any], wakers: frozenset[str | None]) -> Callable[..., Any]:
    if isinstance(callback, BranchCall) or getattr(callback, "__module__", None) in wakers:
        return callback
    if getattr(getattr(callback, "__code__", None), "co_flags", 0) & COROUTINE_FLAG:
        # A mistake, which a loop in debug mode refuses if it sees it.
        return callback
    if wakers is not TIMED_WAKERS:
        return as_job(callback)
    # A timer keeps no program open: most are a library's, for its connections.
    thread = new_branch()
    return callback if thread is None else BranchCall(thread, callback)


def _patch_run_sync(original: Callable[..., Any]) -> Any:
    # The original is bound to its class already, so a static method replaces it.
    async def run_sync_in_worker_thread(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        job = safely(as_job, func) or func
        result = await original(job, *args, **kwargs)
        if isinstance(job, BranchCall) and job.innermost is not job.thread:
            # As the first half of a context manager: FastAPI enters synchronous dependencies so.
            safely(job.hold)
        return result

    return staticmethod(run_sync_in_worker_thread)


def instrument_threading(patches: Patches, module: ModuleType) -> None:
    """Link threads to the program thread that starts them."""
    patches.apply(module, "Thread.start", _patch_start)
    if "start" in vars(module.Timer):
        # Another library has given it a wrapper of the method that we have just replaced.
        patches.apply(module, "Timer.start", _patch_start)


def instrument_pool(patches: Patches, module: ModuleType) -> None:
    """Link jobs to their submitter; `map`, `run_in_executor` and `to_thread` submit too."""
    patches.apply(module, "ThreadPoolExecutor.submit", link_submit)


def instrument_futures(patches: Patches, module: ModuleType) -> None:
    """Link callbacks of pools' futures to the code that adds them; a worker runs them after its job."""
    patches.apply(module, "Future.add_done_callback", _patch_add_done_callback)
    patches.apply(module, "Executor.map", _patch_map)


def instrument_asyncio(patches: Patches, module: ModuleType) -> None:
    """Link tasks and timed callbacks to the program thread that creates them, and find it by the task."""
    state.current_task, state.running_loop = module.tasks.current_task, module.events._get_running_loop
    if sys.version_info < (3, 12):
        # What the function does, which is not in C yet; each new task and each call asks for it.
        state.current_task = module.tasks._current_tasks.get
    _patch_loop(patches, module, "BaseEventLoop")


def instrument_eager_tasks(patches: Patches, module: ModuleType) -> None:
    """Link eager tasks, whose first step runs before they are registered."""
    if hasattr(module, "eager_task_factory"):
        patches.apply(module, "eager_task_factory", _patch_eager_factory)
        patches.apply(module, "tasks.eager_task_factory", _patch_eager_factory)


def instrument_uvloop(patches: Patches, module: ModuleType) -> None:
    """Do the same for uvloop's loop, which is not a BaseEventLoop."""
    _patch_loop(patches, module, "Loop")
    patches.apply(module, "Loop.call_later", _patch_call_at)


def _patch_loop(patches: Patches, module: ModuleType, loop: str) -> None:
    patches.apply(module, f"{loop}.create_task", _patch_create_task)
    patches.apply(module, f"{loop}.call_soon_threadsafe", _patch_call_soon_threadsafe)
    patches.apply(module, f"{loop}.call_at", _patch_call_at)


def instrument_trio(patches: Patches, module: ModuleType) -> None:
    """Link trio's tasks to the task that starts them, and find the program thread by the task."""
    state.trio = module.GLOBAL_RUN_CONTEXT
    patches.apply(module, "Runner.spawn_impl", on_result(lambda task: link(trio_carrier(task))))


def instrument_trio_threads(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of trio's threads, which are reused, to the task that awaits them."""
    patches.apply(module, "ThreadCache.start_thread_soon", link_submit)


def instrument_anyio(patches: Patches, module: ModuleType) -> None:
    """Link jobs of anyio's worker threads, which are reused, to the task that awaits them."""
    patches.apply(module, "AsyncIOBackend.run_sync_in_worker_thread", _patch_run_sync)


def instrument_asgiref(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of `sync_to_async` that go back to the thread of a sync caller."""
    patches.apply(module, "CurrentThreadExecutor.submit", link_submit)
