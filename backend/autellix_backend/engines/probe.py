"""The health, the kind and the KV memory of a server, found over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
METRICS_PATH = "/metrics"
MODELS_PATH = "/v1/models"
# vLLM states the configuration of its cache in the labels of a metric.
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_BLOCKS = re.compile(r'\bnum_gpu_blocks="(\d+)"')
_BLOCK_TOKENS = re.compile(r'\bblock_size="(\d+)"')
_ENGINE = re.compile(r'\bengine="(\d+)"')
MAX_RANKS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFacts:
    """The size of a server's KV cache, as the server states it."""

    tokens: int | None = None
    """The tokens that its KV blocks hold, those of one rank; None if unknown."""
    ranks: int = 1
    """Its data-parallel ranks, each with a cache of its own."""


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
        async with client.get(base_url + path) as response:
            if response.status in ANSWERS:
                return Health()
            return Health(problem=f"answers {path} with status {response.status}")
    except TimeoutError:
        return Health(problem=f"does not answer {path} in time", is_silent=True)
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        return Health(problem=f"does not answer ({type(error).__name__})")


def _client(timeout_s: float, authorization: str | None) -> aiohttp.ClientSession:
    headers = {} if authorization is None else {"authorization": authorization}
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s), headers=headers)


async def detect_kind(base_url: str, timeout_s: float, authorization: str | None = None) -> EngineKind:
    """Return a server's kind by paths that only one kind answers; OPENAI if it answers none."""
    async with _client(timeout_s, authorization) as client:
        for path in SGLANG_PATHS:
            if isinstance((await _object_at(client, base_url + path)).get(SGLANG_FIELD), str):
                return EngineKind.SGLANG
        if isinstance((await _object_at(client, base_url + VLLM_PATH)).get(VLLM_FIELD), str):
            return EngineKind.VLLM
    return EngineKind.OPENAI


async def read_models(base_url: str, timeout_s: float, authorization: str | None = None) -> frozenset[str]:
    """Return the names of the models that a server lists; none if it does not answer with a list."""
    async with _client(timeout_s, authorization) as client:
        models = (await _object_at(client, base_url + MODELS_PATH)).get("data")
    found = [each.get("id") for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    return frozenset(name for name in found if isinstance(name, str))


async def read_cache(base_url: str, timeout_s: float, authorization: str | None = None) -> CacheFacts:
    """Return what a vLLM server states of its KV cache."""
    try:
        async with (
            _client(timeout_s, authorization) as client,
            client.get(base_url + METRICS_PATH, allow_redirects=False) as response,
        ):
            text = await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return CacheFacts()
    return _cache_in(text)


def _cache_in(metrics: str) -> CacheFacts:
    labels = _CACHE_CONFIG.findall(metrics)
    if not labels:
        return CacheFacts()
    engines = {engine for each in labels for engine in _ENGINE.findall(each)}
    ranks = min(max(1, len(engines)), MAX_RANKS)
    blocks, block_tokens = _BLOCKS.search(labels[0]), _BLOCK_TOKENS.search(labels[0])
    tokens = int(blocks[1]) * int(block_tokens[1]) if blocks and block_tokens else None
    return CacheFacts(tokens=tokens, ranks=ranks)


async def _object_at(client: aiohttp.ClientSession, url: str) -> Mapping[str, object]:
    try:
        async with client.get(url, allow_redirects=False) as response:
            found = await response.json() if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
