"""Patches LangChain and LangGraph: every callback manager gets a handler, and four gaps are closed.

- Some `batch` methods start all their runs at once and take them through each step together, `abatch` in
  tasks that end before the work begins. Such a batch is one program, opened around the method.
- Steps of a graph, and parallel runnables, submit their branches one by one. None of these depends on
  another, even if that one finishes before the last is submitted.
- From Python 3.12 LangGraph makes tasks with `asyncio.eager_task_factory`, past the event loop's own method.
- A store that embeds has one task for all its users, which the first of them starts.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

from autellix.integration import (
    DetachedScope,
    FanOut,
    around,
    around_async,
    create_task,
    finished_receipt,
    keep_receipt,
    on_init,
    on_result,
    safely,
)
from autellix_langchain._origins import note_origin
from autellix_langchain._runs import OpenRun, open_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
    from types import ModuleType

    from autellix.integration import Patches


def instrument_callbacks(patches: Patches, module: ModuleType) -> None:
    """Add our handler to every callback manager."""
    patches.apply(module, "BaseCallbackManager.__init__", on_init(_add_handler))


def _add_handler(manager: Any) -> None:
    # Imported late: where the user's program starts with it, its own import is still under way.
    from autellix_langchain._callback import AUTOMATIC

    # New lists: the old ones may be the user's.
    if AUTOMATIC not in manager.handlers:
        manager.handlers = [*manager.handlers, AUTOMATIC]
    if AUTOMATIC not in manager.inheritable_handlers:
        manager.inheritable_handlers = [*manager.inheritable_handlers, AUTOMATIC]


def instrument_runnables(patches: Patches, module: ModuleType) -> None:
    patches.apply(module, "Runnable._batch_with_config", around(_open_batch))
    patches.apply(module, "Runnable._abatch_with_config", around_async(_open_batch))
    patches.apply(module, "RunnableSequence.batch", around(_open_batch))
    patches.apply(module, "RunnableSequence.abatch", around_async(_open_batch))
    patches.apply(module, "RunnableParallel.invoke", _patch_parallel)


def instrument_fallbacks(patches: Patches, module: ModuleType) -> None:
    patches.apply(module, "RunnableWithFallbacks.batch", around(_open_batch))
    patches.apply(module, "RunnableWithFallbacks.abatch", around_async(_open_batch))


def _open_batch(runnable: Any, *_args: object, **_kwargs: object) -> OpenRun | None:
    return open_run(runnable.get_name(), None, None)


def _patch_parallel(original: Callable[..., Any]) -> Callable[..., Any]:
    def invoke(self: Any, *args: Any, **kwargs: Any) -> Any:
        with FanOut():
            return original(self, *args, **kwargs)

    wrapped: Callable[..., Any] = around(_open_parallel)(invoke)
    return wrapped


def _open_parallel(runnable: Any, _: Any = None, config: Any = None, **_kwargs: object) -> OpenRun | None:
    """Open the program of a run before LangChain reports the run, so that the fan-out is inside."""
    config = config or {}
    thread_id = (config.get("configurable") or {}).get("thread_id")
    return open_run(config.get("run_name") or runnable.get_name(), thread_id, None)


def instrument_model(patches: Patches, module: ModuleType) -> None:
    """Hand on the receipts of calls, in the metadata of the messages."""
    patches.apply(module, "BaseChatOpenAI._create_chat_result", _patch_conversion)
    patches.apply(module, "_construct_lc_result_from_responses_api", _patch_conversion)
    patches.apply(module, "BaseChatOpenAI._generate", on_result(_add_receipt))
    patches.apply(module, "BaseChatOpenAI._agenerate", _patch_agenerate)
    patches.apply(module, "BaseChatOpenAI._stream", _patch_stream)
    patches.apply(module, "BaseChatOpenAI._astream", _patch_astream)


def _patch_conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> Any:
        # The first argument of a function, or the second of a method.
        for answer in args[:2]:
            safely(keep_receipt, answer)
        return original(*args, **kwargs)

    return convert


def _patch_agenerate(original: Callable[..., Any]) -> Callable[..., Any]:
    async def _agenerate(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        safely(_add_receipt, result)
        return result

    return _agenerate


def _add_receipt(result: Any) -> None:
    receipt = finished_receipt()
    for generation in result.generations if receipt else ():
        generation.message.response_metadata["autellix"] = receipt


def _patch_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def _stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        chunk = None
        for chunk in original(self, *args, **kwargs):
            yield chunk
        last = safely(_last_chunk, chunk)
        if last is not None:
            yield last

    return _stream


def _patch_astream(original: Callable[..., Any]) -> Callable[..., Any]:
    async def _astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        chunk = None
        async for chunk in original(self, *args, **kwargs):
            yield chunk
        last = safely(_last_chunk, chunk)
        if last is not None:
            yield last

    return _astream


def _last_chunk(chunk: Any) -> Any:
    """Return an empty chunk with the receipt, in place of the one that LangChain itself adds to a stream."""
    receipt = finished_receipt()
    if receipt is None or chunk is None or chunk.message.chunk_position == "last":
        return None
    content: Any = "" if isinstance(chunk.message.content, str) else []
    # In a list: LangChain adds the texts and numbers of dicts when chunks are added.
    metadata = {"autellix": [receipt]}
    message = type(chunk.message)(content=content, chunk_position="last", response_metadata=metadata)
    return type(chunk)(message=message)


def instrument_graphs(patches: Patches, module: ModuleType) -> None:
    """Note where each graph is compiled."""
    patches.apply(module, "Pregel.__init__", on_init(note_origin))


def instrument_stores(patches: Patches, module: ModuleType) -> None:
    """Detach the task of a store that embeds for all its users; the first of them starts it."""
    patches.apply(module, "AsyncBatchedBaseStore._ensure_task", DetachedScope())


def instrument_steps(patches: Patches, module: ModuleType) -> None:
    patches.apply(module, "PregelRunner.tick", _patch_tick)


def _patch_tick(original: Callable[..., Generator[None]]) -> Callable[..., Generator[None]]:
    def tick(self: Any, tasks: Iterable[Any], *args: Any, **kwargs: Any) -> Generator[None]:
        tasks = tuple(tasks)
        step = original(self, tasks, *args, **kwargs)
        # A single task may run in this thread, and then makes branches of its own.
        return step if len(tasks) < 2 else _fanned_out(step)

    return tick


def _fanned_out(step: Generator[None]) -> Generator[None]:
    with contextlib.closing(step):
        while True:
            # Only while the step runs: its consumer may continue in the same program thread in between.
            with FanOut():
                try:
                    next(step)
                except StopIteration:
                    return
            yield


def instrument_eager_tasks(patches: Patches, module: ModuleType) -> None:
    if hasattr(sys.modules["asyncio"], "eager_task_factory"):
        patches.apply(module, "_ensure_future", _patch_ensure_future)


def _patch_ensure_future(original: Callable[..., Any]) -> Callable[..., Any]:
    def ensure_future(*args: Any, **kwargs: Any) -> Any:
        create = functools.partial(original, *args, **kwargs)
        # The loop makes lazy tasks, and the client patches the loop.
        return create() if kwargs.get("lazy", True) else create_task(create)

    return ensure_future
