"""The progress of starting engines: the last line of their logs."""

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

# vLLM's own: "(EngineCore pid=7) INFO 11-23 15:04:05 [core.py:58] ".
_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )*([A-Z]+ \d\d-\d\d \S+ )?(\[\S+:\d+\] )?")


def progress_line(name: str, elapsed_s: float, log_tail: str, width: int) -> str:
    """Return one line about an engine that is starting, no wider than a terminal."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    last = _PREFIX.sub("", lines[-1]) if lines else "no output yet"
    line = f"{name}: {elapsed_s:.0f} s, {last}"
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
        line = progress_line(name, time.monotonic() - started_s, ServerLog(path).tail(), width)
        before, after = ("\r\033[K", "") if is_terminal else ("", "\n")
        print(before, line, sep="", end=after, file=out, flush=True)
