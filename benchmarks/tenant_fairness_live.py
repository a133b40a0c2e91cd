"""Measure, on a real engine, the share of a tenant with one long program beside one that floods it.

One `autellix serve` with a tenants file. Tenant `flood` names a fresh program for every call, so that each of
them has the least attained service; `long` and `heavy` make all their calls in one program. Each side keeps
twice as many calls open as the engine has slots. The phases follow each other on the same engine: both
sides under one key (one tenant: the control), at equal weights, and with a weight of three.
A side's service is that of its receipts.

    python benchmarks/tenant_fairness_live.py [--model demo] [--slots 4] [--seconds 60] [--out DIR]

The exit status is 1 if the long program got less than 45 % at equal weights.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from autellix_backend.gateway.tenancy.tenants import key_line, new_key
from autellix_lab.bench.backend import BackendProcess
from autellix_lab.demo.model import DEMO_MODEL_NAME

CHAT = "/v1/chat/completions"
WEIGHTS = {"flood": 1.0, "long": 1.0, "heavy": 3.0}
PHASES = (("one key", "flood", "flood"), ("1 : 1", "flood", "long"), ("1 : 3", "flood", "heavy"))
"""Name of the phase, the flood's key and the long program's key."""
CALLS_PER_SLOT = 2
PROMPT_WORDS = 20
OUTPUT_TOKENS = (4, 12)
WARM_UP_S = 10.0
FAIR_SHARE = 0.45


@dataclass(slots=True)
class Side:
    """One side's results in the counted time of one phase."""

    calls: int = 0
    service_s: float = 0.0
    wait_s: float = 0.0
    preemptions: int = 0

    def take(self, receipt: dict[str, Any]) -> None:
        """Count one call."""
        self.calls += 1
        self.service_s += receipt["service_s"]
        self.wait_s += receipt["wait_s"]
        self.preemptions += receipt["preemptions"] or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """One phase."""

    phase: str
    entitled_share: float
    flood: Side
    long: Side

    @property
    def share(self) -> float:
        """Return the long program's share of the service."""
        return self.long.service_s / (self.flood.service_s + self.long.service_s)


class ClosedLoop:
    """Keeps calls open at one gateway until a phase is over."""

    def __init__(self, client: aiohttp.ClientSession, url: str, model: str, *, ends_s: float) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._ends_s = ends_s
        self._random = random.Random(0)

    async def run(self, key: str, program_ids: Iterator[str], thread: str, side: Side, from_s: float) -> None:
        """Make one call after another, and count those that end in the counted time."""
        while time.monotonic() < self._ends_s:
            headers = {
                "Authorization": f"Bearer {key}",
                "X-Autellix-Program-ID": (program_id := next(program_ids)),
                "X-Autellix-Thread-ID": thread,
            }
            if program_id.startswith("fresh"):
                headers["X-Autellix-Final"] = "true"
            async with self._client.post(self._url + CHAT, json=self._body(), headers=headers) as response:
                answer = await response.json()
            if "autellix" not in answer:
                raise RuntimeError(f"a call failed: {answer}")
            if from_s <= time.monotonic() < self._ends_s:
                side.take(answer["autellix"])

    def _body(self) -> dict[str, Any]:
        words = " ".join(f"w{self._random.randrange(1000)}" for _ in range(PROMPT_WORDS))
        tokens = self._random.randint(*OUTPUT_TOKENS)
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
        }


async def play(
    url: str, model: str, keys: dict[str, str], *, slots: int, seconds: float
) -> list[PhaseResult]:
    """Play all phases."""
    results = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        for phase, flood_name, long_name in PHASES:
            begins_s = time.monotonic() + WARM_UP_S
            load = ClosedLoop(client, url, model, ends_s=begins_s + seconds)
            flood, long = Side(), Side()
            fresh = (f"fresh-{phase}-{number}" for number in itertools.count())
            same = itertools.repeat(f"long-{phase}")
            async with asyncio.TaskGroup() as group:
                for number in range(CALLS_PER_SLOT * slots):
                    thread = str(number)
                    group.create_task(load.run(keys[flood_name], fresh, "0", flood, begins_s))
                    group.create_task(load.run(keys[long_name], same, thread, long, begins_s))
            weights = WEIGHTS[flood_name], WEIGHTS[long_name]
            results.append(
                PhaseResult(phase=phase, entitled_share=weights[1] / sum(weights), flood=flood, long=long)
            )
    return results


def write_tenants(path: Path, keys: dict[str, str]) -> None:
    """Write the tenants file."""
    lines = []
    for name, key in keys.items():
        lines += [
            "[[tenant]]",
            f'name = "{name}"',
            f"weight = {WEIGHTS[name]}",
            f'keys = ["{key_line(key)}"]',
        ]
    path.write_text("\n".join(lines))


def measure(model: str, *, slots: int, seconds: float, out_dir: Path) -> list[PhaseResult]:
    """Start the backend, play the phases, and stop it."""
    keys = {name: new_key() for name in WEIGHTS}
    tenants_file = out_dir / "tenants.toml"
    write_tenants(tenants_file, keys)
    settings: dict[str, dict[str, Any]] = {
        "gateway": {"port": 0, "tenants_file": str(tenants_file)},
        "engine": {"max_num_seqs": slots},
        "scheduler": {"policy": "plas"},
    }
    with BackendProcess("fairness", model, settings, out_dir) as backend:
        backend.launch()
        backend.wait_ready()
        served = DEMO_MODEL_NAME if model == "demo" else model
        return asyncio.run(play(backend.base_url, served, keys, slots=slots, seconds=seconds))


def print_table(results: list[PhaseResult]) -> None:
    """Print one line per phase."""
    print(
        "| flood : long | long's share | entitled | calls flood, long | mean wait flood, long (s) "
        "| preemptions flood, long |"
    )
    print("|---|---|---|---|---|---|")
    for result in results:
        flood, long = result.flood, result.long
        waits = ", ".join(f"{side.wait_s / max(1, side.calls):.2f}" for side in (flood, long))
        print(
            f"| {result.phase} | {result.share:.1%} | {result.entitled_share:.1%} "
            f"| {flood.calls}, {long.calls} | {waits} | {flood.preemptions}, {long.preemptions} |"
        )


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="folder for logs (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out_dir = args.out or Path(folder)
        out_dir.mkdir(parents=True, exist_ok=True)
        results = measure(args.model, slots=args.slots, seconds=args.seconds, out_dir=out_dir)
    print_table(results)
    equal = next(result for result in results if result.phase == "1 : 1")
    return int(equal.share < FAIR_SHARE)


if __name__ == "__main__":
    raise SystemExit(main())
