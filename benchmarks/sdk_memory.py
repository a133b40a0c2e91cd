"""Measure whether the client's memory grows with the programs and tasks that have ended.

    python benchmarks/sdk_memory.py [--programs 100000] [--tasks 1000000]

Each program makes one call, of which the transport is inside the process, and each task reads its headers.
The resident memory of the process is printed at tenths of the way, so that what grows is seen.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai

import autellix

ANSWER = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
MESSAGES: Any = [{"role": "user", "content": "hello"}]
PARTS = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    options = parser.parse_args()
    for what, parts in (
        ("programs", programs(options.programs)),
        ("tasks", tasks(options.tasks)),
    ):
        for done in parts:
            print(f"{done:>9,} {what}: {resident_mib():.1f} MiB")


def programs(number: int) -> Iterator[int]:
    """Run programs of one call each."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=ANSWER))
    client = openai.OpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="k", http_client=httpx.Client(transport=transport)
    )
    for part in range(PARTS):
        for place in range(number // PARTS):
            with autellix.program(f"program-{place % 100}"):
                client.chat.completions.create(model="m", messages=MESSAGES)
        yield (part + 1) * (number // PARTS)


def tasks(number: int) -> Iterator[int]:
    """Run tasks of one program, a hundred at a time."""

    async def task() -> None:
        autellix.headers("http://127.0.0.1:9/v1")

    async def batch(count: int) -> None:
        with autellix.program("tasks"):
            for _ in range(count // 100):
                await asyncio.gather(*(task() for _ in range(100)))

    for part in range(PARTS):
        asyncio.run(batch(number // PARTS))
        yield (part + 1) * (number // PARTS)


def resident_mib() -> float:
    """Return the resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    main()
