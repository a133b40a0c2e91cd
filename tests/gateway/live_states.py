"""The states that a gateway shows under load, beside what its real engine says of itself at the same time."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

WITHIN_S = 1.0
"""How far apart what the gateway and the engine say may be."""
PERIOD_S = 0.05
LEAST_STEADY = 10
"""Readings at which the engine's numbers had not changed."""
PROGRAMS = "/autellix/v1/programs"
_GAUGE = re.compile(r"^vllm:num_requests_(running|waiting)\{[^}]*\} ([0-9.]+)$", re.MULTILINE)


class Seen(NamedTuple):
    """The open programs at a moment, by one side."""

    at_s: float
    running: int
    waiting: int


@dataclass(slots=True)
class Watched:
    """What was seen while some programs ran."""

    gateway: list[Seen]
    engine: list[Seen]
    states: Counter[str]
    """How often the gateway showed each state."""
    waits_s: dict[str, tuple[float, float]]
    """The waiting of each program: as the gateway showed it last, and as the engine reported it."""

    def check(self) -> None:
        """Assert that the gateway's numbers were the engine's where those had not changed for WITHIN_S.

        A tenth may differ, since a busy machine delays a snapshot.
        """
        near = [
            (seen, {each[1:] for each in self.engine if -WITHIN_S <= each.at_s - seen.at_s <= 2 * PERIOD_S})
            for seen in self.gateway
        ]
        steady = [(seen, next(iter(values))) for seen, values in near if len(values) == 1]
        assert len(steady) >= LEAST_STEADY, near
        different = [(seen, values) for seen, values in steady if seen[1:] != values]
        assert len(different) <= len(steady) / 10, different
        for program_id, (shown_s, reported_s) in self.waits_s.items():
            assert abs(shown_s - reported_s) <= WITHIN_S, (program_id, shown_s, reported_s)


async def watch(
    gateway_url: str, engine_url: str, client: aiohttp.ClientSession, bodies: dict[str, dict[str, Any]]
) -> Watched:
    """Let each program make one call at the same time, and watch both sides meanwhile.

    A short call goes ahead, after which the engine has sent a snapshot.
    """
    watched = Watched(gateway=[], engine=[], states=Counter(), waits_s={})
    shown_s: dict[str, float] = {}

    async def call(program_id: str, body: dict[str, Any]) -> None:
        headers = {"X-Autellix-Program-ID": program_id, "X-Autellix-Final": "true"}
        async with client.post(gateway_url + "/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
        assert response.status == 200, answer
        watched.waits_s[program_id] = (shown_s[program_id], answer["autellix"]["wait_s"])

    async def look() -> None:
        async with client.get(gateway_url + PROGRAMS) as response:
            programs = (await response.json())["programs"]
        shown_s.update({program["program_id"]: program["wait_s"] for program in programs})
        states = Counter(str(program["state"]) for program in programs)
        waiting = states["waiting_for_memory"] + states["waiting_for_slot"]
        watched.states.update(states)
        watched.gateway.append(Seen(time.monotonic(), states["in_engine"], waiting))

    async def ask() -> None:
        async with client.get(engine_url + "/metrics") as response:
            gauges = dict(_GAUGE.findall(await response.text()))
        running, waiting = (int(float(gauges[name])) for name in ("running", "waiting"))
        watched.engine.append(Seen(time.monotonic(), running, waiting))

    first = {**next(iter(bodies.values())), "max_tokens": 2}
    async with client.post(gateway_url + "/v1/chat/completions", json=first) as response:
        assert response.status == 200, await response.text()
    await asyncio.sleep(WITHIN_S)
    calls = asyncio.gather(*(call(program_id, body) for program_id, body in bodies.items()))
    while not calls.done():
        await asyncio.gather(look(), ask())
        await asyncio.sleep(PERIOD_S)
    await calls
    # The answers of the last calls are on their way while the engine is empty.
    await ask()
    return watched
