"""The engines of `autellix serve`, from their start to their end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from autellix_backend.cli.notes import note
from autellix_backend.cli.signals import on_signals
from autellix_backend.cli.start_progress import showing_progress
from autellix_backend.engines.base import Engine, EngineUnreachableError
from autellix_backend.engines.factory import make_engines
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.replica import VllmReplica
from autellix_backend.settings import Settings


@contextlib.asynccontextmanager
async def running_engines(
    settings: Settings, start: AbstractAsyncContextManager[None], ends: Sequence[int]
) -> AsyncIterator[list[Engine]]:
    """Start the engines that the settings describe, and stop them in every case.

    Args:
        settings: The settings.
        start: Is entered while the engines start.
        ends: The signals that cancel the start.
    """
    engines: list[Engine] = []
    task = asyncio.current_task()
    assert task is not None
    try:
        with on_signals(task.cancel, *ends):
            async with start:
                # In a thread: it may have to write the model.
                engines = await asyncio.to_thread(make_engines, settings)
                await _start(engines, must_answer=settings.engine.must_answer)
        yield engines
    finally:
        await _stop(engines)


async def _start(engines: Sequence[Engine], *, must_answer: bool) -> None:
    """Start all engines at once; the first that fails ends the start of the others.

    A remote engine may be missing unless it must answer: its supervisor waits for it.
    """
    logs: list[tuple[str, Path]] = []
    for engine in engines:
        if isinstance(engine, VllmReplica):
            logs.append((engine.name, engine.log.path))
            print(f"Starting {engine.name} with {engine.model} (log: {engine.log.path}) ...", file=sys.stderr)
        elif isinstance(engine, RayReplica):
            print(f"Placing {engine.name} with {engine.model} through Ray ...", file=sys.stderr)
    starts = [
        asyncio.ensure_future(engine.start() if engine.is_owned or must_answer else _start_if_there(engine))
        for engine in engines
    ]
    try:
        async with showing_progress(logs, sys.stderr):
            await asyncio.gather(*starts)
    finally:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


async def _stop(engines: Sequence[Engine]) -> None:
    """Stop all engines at once; those that are ours may take as long as a server of vLLM takes to end."""
    if owned := [engine.name for engine in engines if engine.is_owned]:
        note(f"ending {', '.join(owned)}; this may take 20 s")
    await asyncio.gather(*(engine.stop() for engine in engines))


async def _start_if_there(engine: Engine) -> None:
    try:
        await engine.start()
    except EngineUnreachableError as error:
        note(f"{error.what}; it gets calls once it answers")
