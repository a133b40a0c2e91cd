"""The progress of starting engines: the stage that their logs show."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TextIO

from autellix_backend.engines.server_log import ServerLog

TERMINAL_PERIOD_S, PLAIN_PERIOD_S = 1.0, 15.0
"""Seconds between updates. A terminal overwrites the line; elsewhere each update is a new line."""

STAGES = (
    ("importing vLLM", re.compile(r"")),
    ("starting the engine", re.compile(r"Initializing a V1 LLM engine")),
    ("loading weights", re.compile(r"Starting to load model|Loading \S+ checkpoint shards: +(\d+)%")),
    ("compiling", re.compile(r"Dynamo bytecode transform|Compiling a graph|torch\.compile takes")),
    ("allocating KV memory", re.compile(r"Available KV cache memory|KV cache size|for KV cache on node")),
    ("capturing CUDA graphs", re.compile(r"Capturing CUDA graphs?\b.*?(?: (\d+)%|$)")),
    ("starting the server", re.compile(r"Starting vLLM server|Started server process")),
)
"""The stages of a start in order, each with what vLLM writes in it, and with its percentage if it counts."""


def progress_line(name: str, elapsed_s: float, log: Sequence[str], width: int) -> str:
    """Return one line about an engine that is starting, no wider than a terminal."""
    stage, percent = 0, ""
    for line in log:
        for number in range(stage, len(STAGES)):
            if number and (found := STAGES[number][1].search(line)):
                counted = next(filter(None, found.groups()), None)
                percent = f" {counted} %" if counted else percent if number == stage else ""
                stage = number
    line = f"{name}: {STAGES[stage][0]}{percent} (stage {stage + 1} of {len(STAGES)}), {elapsed_s:.0f} s"
    return line if len(line) <= width else f"{line[: width - 1]}…"


@contextlib.asynccontextmanager
async def showing_progress(
    logs: Sequence[tuple[str, Path]], out: TextIO, *, period_s: float | None = None
) -> AsyncIterator[None]:
    """Show the progress of engines while the block runs.

    Args:
        logs: Name and log of each engine.
        out: Where to write.
        period_s: Seconds between updates; None for the default of a terminal or a file.
    """
    follower = asyncio.create_task(_follow(logs, out, period_s))
    try:
        yield
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        if logs and out.isatty():
            # Clear the line for the output that follows.
            print("\r\033[K", end="", file=out, flush=True)


async def _follow(logs: Sequence[tuple[str, Path]], out: TextIO, period_s: float | None) -> None:
    started_s = time.monotonic()
    is_terminal = out.isatty()
    period_s = period_s or (TERMINAL_PERIOD_S if is_terminal else PLAIN_PERIOD_S)
    width = shutil.get_terminal_size().columns if is_terminal else 160
    for name, path in itertools.cycle(logs):
        await asyncio.sleep(period_s)
        line = progress_line(name, time.monotonic() - started_s, ServerLog(path).lines(), width)
        before, after = ("\r\033[K", "") if is_terminal else ("", "\n")
        print(before, line, sep="", end=after, file=out, flush=True)
