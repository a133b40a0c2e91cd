"""Links what a program sends to other processes: patches of process pools and `multiprocessing`.

Each job and process object carries a propagation context. Unpickling it imports the client, so the other
process is instrumented even if its main module does not import the client.
"""

from __future__ import annotations

import functools

from autellix._faults import safely
from autellix._instrument.spawns import suppress_spawns
from autellix._programs.branches import BranchFunction, BranchItem, BranchItems
from autellix._programs.end_signal import make_pair
from autellix._programs.registry import programs
from autellix._programs.remote import RemoteFunction, context_without_return, enter_remote, remote_jobs
from autellix._programs.running import running_thread, switch_to
from autellix._propagation import Suppressed, propagation, suppression
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches

    Args = tuple[Any, ...]
    Linked = tuple[Callable[..., Any], Args]

EAGER = "_map_async"
LAZY = "imap"
"""How the methods begin that take their items later, in another thread."""
WORKER_MODULES = ("loky.backend.process",)
"""Modules whose processes serve the jobs of many programs, and so must not inherit the first one's."""
ATTRIBUTE = "_autellix_context"
"""The attribute of a process object that holds its propagation context."""


def _patch_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        sent = safely(remote_jobs.send, fn) if propagation.is_on else None
        with Suppressed():
            future = original(self, fn if sent is None else sent, *args, **kwargs)
        if sent is not None:
            future.add_done_callback(lambda _: remote_jobs.discard(sent))
        return future

    return submit


def _patch_process_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        if propagation.is_on and not suppression.is_on and not type(self).__module__.endswith(WORKER_MODULES):
            safely(_attach_context, self)
        try:
            original(self, *args, **kwargs)
        finally:
            safely(_detach_context, self)

    return start


def _attach_context(process: Any) -> None:
    context, program = context_without_return(), running_thread().program
    ours, its = (None, None) if program is programs.implicit else make_pair(process)
    setattr(process, ATTRIBUTE, (context, its))
    if ours is not None:
        program.processes.append(ours)


def _detach_context(process: Any) -> None:
    """Close this process's copy of what the started one has."""
    _, signal = vars(process).pop(ATTRIBUTE, (None, None))
    if signal is not None:
        signal.connection.close()


def _patch_bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        safely(_enter_context, self)
        try:
            return original(self, *args, **kwargs)
        finally:
            # A forked process skips its exit functions.
            safely(keeper.end_at_exit)

    return _bootstrap


def _enter_context(process: Any) -> None:
    context, signal = vars(process).pop(ATTRIBUTE, (None, None))
    if context is not None:
        thread = enter_remote(context)
        thread.program.end_signal = signal
        switch_to(thread)


def _patch_pool_call(original: Callable[..., Any], thread_pool: type) -> Callable[..., Any]:
    """Patch a method of pools of threads or processes whose first argument is the function to run."""

    def call(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if propagation.is_on and not isinstance(func, BranchFunction | RemoteFunction):
            if original.__name__ == EAGER and args and not hasattr(args[0], "__len__"):
                # The original would do so: what makes the items may make calls, which go before the branches.
                args = (list(args[0]), *args[1:])
            link = _link_to_threads if isinstance(self, thread_pool) else _link_to_processes
            func, args = safely(link, original.__name__, func, args) or (func, args)
        return original(self, func, *args, **kwargs)

    return call


def _link_to_threads(name: str, function: Callable[..., Any], args: Args) -> Linked:
    args = _linked_items(name, args, BranchItem)
    return BranchFunction(running_thread().branch(), function), args


def _link_to_processes(name: str, function: Callable[..., Any], args: Args) -> Linked:
    args = _linked_items(name, args, None)
    return RemoteFunction(context_without_return(), function), args


def _linked_items(name: str, args: Args, wrap: type[BranchItem] | None) -> Args:
    """Let the iterator of a map's items run in the program: it may make calls."""
    if not name.startswith(LAZY) or not args or hasattr(args[0], "__len__"):
        return args
    # A thread of the pool takes the items one by one.
    return BranchItems(running_thread().branch(), iter(args[0]), wrap), *args[1:]


def instrument_process_pool(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of process pools, the standard library's and those of loky, which joblib uses."""
    patches.apply(module, "ProcessPoolExecutor.submit", _patch_submit)


def instrument_processes(patches: Patches, module: ModuleType) -> None:
    """Link the processes of `multiprocessing`, with any start method."""
    patches.apply(module, "BaseProcess.start", _patch_process_start)
    patches.apply(module, "BaseProcess._bootstrap", _patch_bootstrap)


def instrument_multiprocessing_pool(patches: Patches, module: ModuleType) -> None:
    """Link the jobs of `multiprocessing.pool`, of threads and of processes."""
    patches.apply(module, "Pool.__init__", suppress_spawns)
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        make = functools.partial(_patch_pool_call, thread_pool=module.ThreadPool)
        patches.apply(module, f"Pool.{name}", make)
