"""Links what a program sends to other processes: patches of process pools and `multiprocessing`.

Each job and process object carries a propagation context. Unpickling it imports the client, so the other
process is instrumented even if its main module does not import the client.
"""

from __future__ import annotations

import functools

from autellix._faults import safely
from autellix._instrument.spawns import suppress_spawns
from autellix._programs.branches import BranchFunction
from autellix._programs.remote import (
    RemoteFunction,
    RemoteResult,
    context_without_return,
    enter_remote,
    remote_jobs,
)
from autellix._programs.running import running_thread, switch_to
from autellix._propagation import Suppressed, propagation
from autellix._sessions.keeper import end_at_exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches

WORKER_MODULES = ("loky.backend.process",)
"""Modules whose processes serve the jobs of many programs, and so must not inherit the first one's."""
ATTRIBUTE = "_autellix_context"
"""The attribute of a process object that holds its propagation context."""


def _patch_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        sent = safely(remote_jobs.send, fn) if propagation.is_on else None
        with Suppressed():
            future = original(self, fn if sent is None else sent, *args, **kwargs)
        if sent is not None:
            future.add_done_callback(lambda _: remote_jobs.discard(sent))
        return future

    return submit


def _patch_set_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_result(self: Any, result: Any) -> None:
        if isinstance(result, RemoteResult):
            safely(remote_jobs.receive, result)
            result = result.value
        original(self, result)

    return set_result


def _patch_process_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> None:
        if (
            propagation.is_on
            and not propagation.is_suppressed
            and not type(self).__module__.endswith(WORKER_MODULES)
        ):
            safely(_attach_context, self)
        original(self)

    return start


def _attach_context(process: Any) -> None:
    setattr(process, ATTRIBUTE, context_without_return())


def _patch_bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = getattr(self, ATTRIBUTE, None)
        thread = None if context is None else safely(enter_remote, context)
        if thread is not None:
            switch_to(thread)
        try:
            return original(self, *args, **kwargs)
        finally:
            # A forked process skips its exit functions.
            safely(end_at_exit)

    return _bootstrap


def _patch_pool_call(original: Callable[..., Any], thread_pool: type) -> Callable[..., Any]:
    """Patch a method of pools of threads or processes whose first argument is the function to run."""

    @functools.wraps(original)
    def call(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if propagation.is_on and not isinstance(func, BranchFunction | RemoteFunction):
            link = _link_to_threads if isinstance(self, thread_pool) else _link_to_processes
            func = safely(link, func) or func
        return original(self, func, *args, **kwargs)

    return call


def _link_to_threads(function: Callable[..., Any]) -> Callable[..., Any]:
    return BranchFunction(running_thread().branch(), function)


def _link_to_processes(function: Callable[..., Any]) -> Callable[..., Any]:
    return RemoteFunction(context_without_return(), function)


def instrument_process_pool(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of process pools, the standard library's and those of loky, which joblib uses."""
    from concurrent.futures import Future

    future: Any = Future
    if not hasattr(future.set_result, "__wrapped__"):
        # Never reverted: a job under way when the client is switched off must still return its plain result.
        future.set_result = _patch_set_result(future.set_result)
    patches.apply(module.ProcessPoolExecutor, "submit", _patch_submit)


def instrument_processes(patches: Patches, module: ModuleType) -> None:
    """Link the processes of `multiprocessing`, with any start method."""
    patches.apply(module.BaseProcess, "start", _patch_process_start)
    patches.apply(module.BaseProcess, "_bootstrap", _patch_bootstrap)


def instrument_multiprocessing_pool(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of `multiprocessing.pool`, of threads and of processes."""
    patches.apply(module.Pool, "__init__", suppress_spawns)
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patches.apply(module.Pool, name, functools.partial(_patch_pool_call, thread_pool=module.ThreadPool))
