"""The health probe of a server over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

HEALTH_PATH = "/health"
ANSWERS = (200, 401, 403)
"""Statuses of a server that works; a refused key is one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The result of a probe."""

    problem: str | None = None
    """The problem, as a predicate of the engine; None if it serves."""
    is_silent: bool = False
    """Whether it did not answer in time: it is busy, or it hangs."""


async def probe(base_url: str, timeout_s: float, paths: Sequence[str] = (HEALTH_PATH,)) -> Health:
    """Probe the paths in turn until one answers; each may take the timeout."""
    health = Health(problem="does not answer")
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        for path in paths:
            health = await _ask(client, base_url, path)
            if health.problem is None or health.is_silent:
                break
    return health


async def _ask(client: aiohttp.ClientSession, base_url: str, path: str) -> Health:
    try:
        async with client.get(base_url + path) as response:
            if response.status in ANSWERS:
                return Health()
            return Health(problem=f"answers {path} with status {response.status}")
    except TimeoutError:
        return Health(problem=f"does not answer {path} in time", is_silent=True)
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        return Health(problem=f"does not answer ({type(error).__name__})")
