"""Measure, on a real engine, an interactive stream of calls beside a flood of batch calls.

One `autellix serve`, without tenants. The stream makes a call at random times, the flood keeps three calls
open for each slot; each call is a program of its own. The phases follow each other on the same engine: the
stream alone, the flood alone, and both beside each other without and with their priorities.

    python benchmarks/priorities_live.py [--model demo] [--slots 8] [--seconds 20] [--out DIR]

Wants an idle machine. `priorities.py` has the same comparison in simulation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from autellix_lab.bench.backend import BackendProcess
from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_lab.workload.statistics import percentile

CHAT = "/v1/chat/completions"
PHASES = (
    ("stream alone", True, False, False),
    ("flood alone", False, True, False),
    ("both", True, True, False),
    ("both, with priorities", True, True, True),
)
"""Name, whether the stream and the flood play, and whether they state their priorities."""
OPEN_PER_SLOT = 3
STREAM_TOKENS, FLOOD_TOKENS = 24, 64
STREAM_GAP_S = 1.0
PROMPT_WORDS = 20
WARM_UP_S = 5.0


@dataclass(slots=True)
class Side:
    """One side's calls in the counted time of a phase."""

    latencies_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    tokens: int = 0

    def take(self, latency_s: float, answer: Mapping[str, Any]) -> None:
        """Count a call.

        Raises:
            RuntimeError: if it failed.
        """
        if "autellix" not in answer:
            raise RuntimeError(f"a call failed: {answer}")
        self.latencies_s.append(latency_s)
        self.waits_s.append(answer["autellix"]["wait_s"])
        self.tokens += answer["usage"]["completion_tokens"]


class Player:
    """Makes the calls of one phase."""

    def __init__(self, client: aiohttp.ClientSession, url: str, model: str, *, seconds: float) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._from_s = time.monotonic() + WARM_UP_S
        self._ends_s = self._from_s + seconds
        self._random = random.Random(0)

    async def stream(self, side: Side, priority: str | None, names: Iterator[str]) -> None:
        """Make calls at random times until the phase is over."""
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < self._ends_s:
                group.create_task(self._call(side, priority, next(names), STREAM_TOKENS))
                await asyncio.sleep(self._random.expovariate(1 / STREAM_GAP_S))

    async def flood(self, side: Side, priority: str | None, names: Iterator[str]) -> None:
        """Make one call after the other until the phase is over."""
        while time.monotonic() < self._ends_s:
            await self._call(side, priority, next(names), FLOOD_TOKENS)

    async def _call(self, side: Side, priority: str | None, name: str, tokens: int) -> None:
        headers = {"X-Autellix-Program-ID": name, "X-Autellix-Final": "true"}
        if priority is not None:
            headers["X-Autellix-Priority"] = priority
        words = " ".join(f"w{self._random.randrange(1000)}" for _ in range(PROMPT_WORDS))
        body = {"model": self._model, "messages": [{"role": "user", "content": words}]}
        body |= {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        begun_s = time.monotonic()
        async with self._client.post(self._url + CHAT, json=body, headers=headers) as response:
            answer = await response.json()
        if self._from_s <= begun_s and time.monotonic() < self._ends_s:
            side.take(time.monotonic() - begun_s, answer)


async def play(url: str, model: str, *, slots: int, seconds: float) -> dict[str, tuple[Side, Side]]:
    """Play all phases; return the stream and the flood of each."""
    found: dict[str, tuple[Side, Side]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        for phase, has_stream, has_flood, states in PHASES:
            names = (f"{phase} {number}" for number in itertools.count())
            player = Player(client, url, model, seconds=seconds)
            stream, flood = found[phase] = Side(), Side()
            async with asyncio.TaskGroup() as group:
                if has_stream:
                    group.create_task(player.stream(stream, "interactive" if states else None, names))
                for _ in range(OPEN_PER_SLOT * slots if has_flood else 0):
                    group.create_task(player.flood(flood, "batch" if states else None, names))
    return found


def table(found: Mapping[str, tuple[Side, Side]], seconds: float) -> Iterator[str]:
    """Yield a line for each phase."""
    yield "| phase | stream's calls | p95 (s) | p95 wait (s) | flood (tokens/s) |"
    yield "|---|---|---|---|---|"
    for phase, (stream, flood) in found.items():
        p95s = ["-", "-"]
        with contextlib.suppress(IndexError):
            p95s = [
                f"{percentile(sorted(values), 0.95):.2f}" for values in (stream.latencies_s, stream.waits_s)
            ]
        yield f"| {phase} | {len(stream.latencies_s)} | {' | '.join(p95s)} | {flood.tokens / seconds:.0f} |"


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, help="folder for logs (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out_dir = args.out or Path(folder)
        out_dir.mkdir(parents=True, exist_ok=True)
        settings: dict[str, dict[str, Any]] = {"gateway": {"port": 0}, "engine": {"max_num_seqs": args.slots}}
        with BackendProcess("priorities", args.model, settings, out_dir) as backend:
            backend.launch()
            backend.wait_ready()
            served = DEMO_MODEL_NAME if args.model == "demo" else args.model
            found = asyncio.run(play(backend.base_url, served, slots=args.slots, seconds=args.seconds))
    print("\n".join(table(found, args.seconds)))


if __name__ == "__main__":
    main()
