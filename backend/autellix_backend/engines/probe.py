"""The health, the kind and the KV memory of a server, found over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from autellix_backend.engines.base import EngineKind, Health

HEALTH_PATH = "/health"
ANSWERS = (200, 401, 403)
"""Statuses of a server that works; a refused key is one of them."""
# SGLang renamed its path and still answers the old one.
SGLANG_PATHS = ("/get_model_info", "/model_info")
SGLANG_FIELD = "model_path"
VLLM_PATH = "/version"
VLLM_FIELD = "version"
METRICS_PATH = "/metrics"
MODELS_PATH = "/v1/models"
CACHE_CONFIG = "vllm:cache_config_info"
"""The metric in whose labels vLLM states the configuration of its cache."""
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
"""The metrics in which vLLM states its queue lengths."""
MAX_RANKS = 256
MAX_PROBE_BYTES = 4 * 2**20
"""The longest list of models, or page of metrics, that is read."""
LOOP_HEADER = "x-autellix-probe"
LOOP_MARK = secrets.token_hex(8)
"""Sent with each probe, so that this process knows its own and never becomes its own engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFacts:
    """The size of a server's KV cache, as the server states it."""

    tokens: int | None = None
    """The tokens that its KV blocks hold, those of one rank; None if unknown."""
    ranks: int = 1
    """The server's data-parallel ranks, each with a cache of its own."""
    states_queue: bool = False
    """Whether it states its queue lengths too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLengths:
    """The calls of all clients at a server."""

    running: int
    waiting: int


async def probe(
    base_url: str,
    timeout_s: float,
    paths: Sequence[str] = (HEALTH_PATH,),
    *,
    authorization: str | None = None,
) -> Health:
    """Probe the paths in turn until one answers; each may take the timeout."""
    health = Health(problem="does not answer")
    async with _client(timeout_s, authorization) as client:
        for path in paths:
            health = await _ask(client, base_url, path)
            if health.problem is None or health.is_silent:
                break
    return health


async def _ask(client: aiohttp.ClientSession, base_url: str, path: str) -> Health:
    try:
        async with client.get(base_url + path, allow_redirects=False) as response:
            if response.status in ANSWERS:
                return Health()
            return Health(problem=f"answers {path} with status {response.status}")
    except TimeoutError:
        return Health(problem=f"does not answer {path} in time", is_silent=True)
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        return Health(problem=f"does not answer ({_words(error)})")


def _client(timeout_s: float, authorization: str | None) -> aiohttp.ClientSession:
    headers = {LOOP_HEADER: LOOP_MARK} | ({} if authorization is None else {"authorization": authorization})
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s), headers=headers)


def _words(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    # Failed look-ups of names have numbers of their own.
    return os.strerror(number) if number is not None and number > 0 else type(error).__name__


async def detect_kind(base_url: str, timeout_s: float, authorization: str | None = None) -> EngineKind:
    """Return a server's kind by paths that only one kind answers; OPENAI if it answers none."""
    async with _client(timeout_s, authorization) as client:
        for path in SGLANG_PATHS:
            if isinstance((await _object_at(client, base_url + path)).get(SGLANG_FIELD), str):
                return EngineKind.SGLANG
        if isinstance((await _object_at(client, base_url + VLLM_PATH)).get(VLLM_FIELD), str):
            return EngineKind.VLLM
    return EngineKind.OPENAI


async def read_models(base_url: str, timeout_s: float, authorization: str | None = None) -> dict[str, object]:
    """Return the models that a server lists, as it describes each; none if it does not answer with a list."""
    async with _client(timeout_s, authorization) as client:
        models = (await _object_at(client, base_url + MODELS_PATH)).get("data")
    found = [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    return {each["id"]: each for each in found if isinstance(each.get("id"), str)}


async def read_cache(base_url: str, timeout_s: float, authorization: str | None = None) -> CacheFacts:
    """Return what a vLLM server states of its KV cache."""
    return _cache_in(await _metrics_of(base_url, timeout_s, authorization))


async def read_queue(
    base_url: str, timeout_s: float, authorization: str | None = None
) -> QueueLengths | None:
    """Return the queue lengths that a vLLM server states, over all its ranks; None if it states none."""
    return _queue_in(await _metrics_of(base_url, timeout_s, authorization))


async def _metrics_of(base_url: str, timeout_s: float, authorization: str | None) -> str:
    """Return a server's metrics, nothing if it has none."""
    try:
        async with (
            _client(timeout_s, authorization) as client,
            client.get(base_url + METRICS_PATH, allow_redirects=False) as response,
        ):
            return (await _content(response)).decode() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return ""


def _samples(metrics: str, name: str) -> list[Sample]:
    # Parsing the other metrics as well would take a hundred times as long.
    lines = "\n".join(line for line in metrics.splitlines() if line.startswith((name + "{", name + " ")))
    return [each for family in text_string_to_metric_families(lines) for each in family.samples]


def _queue_in(metrics: str) -> QueueLengths | None:
    running, waiting = _samples(metrics, RUNNING), _samples(metrics, WAITING)
    if not running or not waiting:
        return None
    return QueueLengths(
        running=int(sum(each.value for each in running)), waiting=int(sum(each.value for each in waiting))
    )


def _cache_in(metrics: str) -> CacheFacts:
    states_queue = _queue_in(metrics) is not None
    found = [each.labels for each in _samples(metrics, CACHE_CONFIG)]
    if not found:
        return CacheFacts(states_queue=states_queue)
    sizes = [found[0].get(name, "") for name in ("num_gpu_blocks", "block_size")]
    return CacheFacts(
        tokens=math.prod(map(int, sizes)) if all(map(str.isdecimal, sizes)) else None,
        ranks=min(len({labels.get("engine") for labels in found}), MAX_RANKS),
        states_queue=states_queue,
    )


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Return a whole answer; raises a ValueError if it is too long."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > MAX_PROBE_BYTES:
            raise ValueError
    return bytes(content)


async def _object_at(client: aiohttp.ClientSession, url: str) -> Mapping[str, object]:
    try:
        async with client.get(url, allow_redirects=False) as response:
            found = json.loads(await _content(response)) if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
