"""Owns what is changed in LangChain and LangGraph: every callback manager gets a handler, and gaps close.

- Some `batch` methods start all their runs at once and take them through each step together, `abatch` in
  tasks that end before the work begins. Such a batch is one program, opened around the method.
- Steps of a graph, and parallel runnables, submit their branches one by one. None of these waits for another,
  also if that has finished before the last is submitted.
- From Python 3.12 LangGraph makes tasks by `asyncio.eager_task_factory`, past the event loop's own method.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

from autellix.integration import Together, adopt, fork, safely, spawning, when_imported
from autellix_langchain._runs import Opened, open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import ModuleType

    from autellix.integration import Patches


def instrument(patches: Patches, module: ModuleType) -> None:
    """Give every callback manager a handler of ours; called with `langchain_core.callbacks.base`."""
    patches.apply(module.BaseCallbackManager, "__init__", _make_init)
    for name, instrument_module in MODULES.items():
        when_imported(name, functools.partial(instrument_module, patches))


def _make_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands in for one
        original(self, *args, **kwargs)
        safely(_add_handler, self)

    return __init__


def _add_handler(manager: Any) -> None:
    # Imported late: it is being imported itself where the user's program begins with it.
    from autellix_langchain._callback import AUTOMATIC

    # New lists: these may be the user's own.
    if AUTOMATIC not in manager.handlers:
        manager.handlers = [*manager.handlers, AUTOMATIC]
    if AUTOMATIC not in manager.inheritable_handlers:
        manager.inheritable_handlers = [*manager.inheritable_handlers, AUTOMATIC]


def _instrument_runnables(patches: Patches, module: ModuleType) -> None:
    patches.apply(module.Runnable, "_batch_with_config", _make_batch)
    patches.apply(module.Runnable, "_abatch_with_config", _make_abatch)
    patches.apply(module.RunnableSequence, "batch", _make_batch)
    patches.apply(module.RunnableSequence, "abatch", _make_abatch)
    patches.apply(module.RunnableParallel, "invoke", _make_parallel)


def _instrument_fallbacks(patches: Patches, module: ModuleType) -> None:
    patches.apply(module.RunnableWithFallbacks, "batch", _make_batch)
    patches.apply(module.RunnableWithFallbacks, "abatch", _make_abatch)


def _make_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        opened = safely(_open, self)
        try:
            return original(self, *args, **kwargs)
        finally:
            if opened is not None:
                safely(opened.close)

    return batch


def _make_abatch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def abatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        opened = safely(_open, self)
        try:
            return await original(self, *args, **kwargs)
        finally:
            if opened is not None:
                safely(opened.close)

    return abatch


def _make_parallel(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        opened = safely(_open, self, config)
        try:
            with Together():
                return original(self, input, config, **kwargs)
        finally:
            if opened is not None:
                safely(opened.close)

    return invoke


def _open(runnable: Any, config: Any = None) -> Opened | None:
    """Open a program around a method, before LangChain tells its handlers of the run."""
    config = config or {}
    thread_id = (config.get("configurable") or {}).get("thread_id")
    return open_run(config.get("run_name") or runnable.get_name(), thread_id, None)


def _instrument_steps(patches: Patches, module: ModuleType) -> None:
    patches.apply(module.PregelRunner, "tick", _make_tick)


def _make_tick(original: Callable[..., Generator[None]]) -> Callable[..., Generator[None]]:
    @functools.wraps(original)
    def tick(self: Any, tasks: Iterable[Any], *args: Any, **kwargs: Any) -> Generator[None]:
        tasks = tuple(tasks)
        step = original(self, tasks, *args, **kwargs)
        # A single task may run right here, and then branches by itself.
        return step if len(tasks) < 2 else _spawning_together(step)

    return tick


def _spawning_together(step: Generator[None]) -> Generator[None]:
    with contextlib.closing(step):
        while True:
            # Only while the step runs: between, its consumer may be the same line of control.
            with Together():
                try:
                    next(step)
                except StopIteration:
                    return
            yield


def _instrument_eager_tasks(patches: Patches, module: ModuleType) -> None:
    if hasattr(sys.modules["asyncio"], "eager_task_factory"):
        patches.apply(module, "_ensure_future", _make_ensure_future)


def _make_ensure_future(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ensure_future(coro: Any, *, lazy: bool = True, **kwargs: Any) -> Any:
        if lazy:
            # Made by the loop, which the client watches.
            return original(coro, lazy=lazy, **kwargs)
        strand = safely(fork)
        before = spawning(strand)
        try:
            task = original(coro, lazy=lazy, **kwargs)
        finally:
            spawning(before)
        safely(adopt, task, strand)
        return task

    return ensure_future


MODULES: dict[str, Callable[[Patches, ModuleType], None]] = {
    "langchain_core.runnables.base": _instrument_runnables,
    "langchain_core.runnables.fallbacks": _instrument_fallbacks,
    "langgraph._internal._future": _instrument_eager_tasks,
    "langgraph.pregel._runner": _instrument_steps,
}
"""What is patched in which module, once that is imported."""
