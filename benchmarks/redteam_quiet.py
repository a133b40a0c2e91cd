"""The red team's quiet tenant: it makes calls of every kind, one after the other, and times each.

Half of its workers keep their connections, the others open one for each call. One more worker calls the
engine itself: its waits are those that no gateway adds, for the engine and for a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import aiohttp

WORKERS = 4
THINK_S = 0.02
PATIENCE_S = 60.0
ADDRESS = "127.0.0.2"
"""Another client address than the attacker's."""
CALLS: tuple[tuple[str, str], ...] = (
    ("/v1/chat/completions", "messages"),
    ("/v1/completions", "prompt"),
    ("/v1/messages", "messages"),
    ("/v1/responses", "input"),
    ("/v1/embeddings", "input"),
)


@dataclass(slots=True)
class Phase:
    """What the quiet tenant saw in a phase: its waits in seconds, and what was wrong."""

    calls_s: list[float] = field(default_factory=list)
    direct_s: list[float] = field(default_factory=list)
    """Waits of calls to the engine itself."""
    failures: list[str] = field(default_factory=list)

    def add(self, other: Phase) -> None:
        """Add what was seen in another phase."""
        self.calls_s += other.calls_s
        self.direct_s += other.direct_s
        self.failures += other.failures


def quantile(waits_s: Sequence[float], share: float) -> float:
    """Return a quantile of waits, 0 of none."""
    ordered = sorted(waits_s)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def play(url: str, engine_url: str, key: str, phases: Connection) -> None:
    """Make calls until the connection ends; answer each message with the phase that it ends."""
    asyncio.run(_play(url, engine_url, key, phases))


async def _play(url: str, engine_url: str, key: str, phases: Connection) -> None:
    phase = Phase()
    headers = {"authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)

    async def work(client: aiohttp.ClientSession, target: str, worker: int, waits: str) -> None:
        number = 0
        while True:
            number += 1
            current = phase
            begun_s = time.monotonic()
            problem = await _call(client, target, worker, number)
            getattr(current, waits).append(time.monotonic() - begun_s)
            if problem is not None:
                current.failures.append(problem)
            await asyncio.sleep(THINK_S)

    kept = aiohttp.TCPConnector(local_addr=(ADDRESS, 0))
    fresh = aiohttp.TCPConnector(local_addr=(ADDRESS, 0), force_close=True)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout, connector=kept) as client,
        aiohttp.ClientSession(headers=headers, timeout=timeout, connector=fresh) as fresh_client,
    ):
        kinds = [(client, url, "calls_s"), (fresh_client, url, "calls_s")] * (WORKERS // 2)
        kinds.append((client, engine_url, "direct_s"))
        tasks = [
            asyncio.create_task(work(each, target, worker, waits))
            for worker, (each, target, waits) in enumerate(kinds)
        ]
        with contextlib.suppress(EOFError):
            while True:
                await asyncio.to_thread(phases.recv)
                phases.send(phase)
                phase = Phase()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _call(client: aiohttp.ClientSession, url: str, worker: int, number: int) -> str | None:
    """Make a call; return what was wrong with its answer."""
    path, name = CALLS[number % len(CALLS)]
    mark = f"mark-{worker}-{number}"
    said: object = [{"role": "user", "content": mark}] if name == "messages" else mark
    body = {"model": "m", name: said, "max_tokens": 8, "stream": number % 3 == 0 and path != CALLS[-1][0]}
    headers = {"X-Autellix-Program-ID": f"program-{worker}", "X-Autellix-Session-ID": f"session-{worker}"}
    try:
        async with client.post(url + path, data=json.dumps(body), headers=headers) as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{path}: {type(error).__name__} {error}"
    if response.status != 200 or mark not in text:
        return f"{path}: {response.status} {text[:200]}"
    return None
