"""The health and the kind of a server, found over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp

from autellix_backend.engines.base import EngineKind, Health

HEALTH_PATH = "/health"
ANSWERS = (200, 401, 403)
"""Statuses of a server that works; a refused key is one of them."""
# SGLang renamed its path and still answers the old one.
SGLANG_PATHS = ("/get_model_info", "/model_info")
SGLANG_FIELD = "model_path"
VLLM_PATH = "/version"
VLLM_FIELD = "version"


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


async def detect_kind(base_url: str, timeout_s: float) -> EngineKind:
    """Return a server's kind by paths that only one kind answers; OPENAI if it answers none."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as client:
        for path in SGLANG_PATHS:
            if isinstance((await _object_at(client, base_url + path)).get(SGLANG_FIELD), str):
                return EngineKind.SGLANG
        if isinstance((await _object_at(client, base_url + VLLM_PATH)).get(VLLM_FIELD), str):
            return EngineKind.VLLM
    return EngineKind.OPENAI


async def _object_at(client: aiohttp.ClientSession, url: str) -> Mapping[str, object]:
    try:
        async with client.get(url, allow_redirects=False) as response:
            found = await response.json() if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
