"""The kinds of engines, which differ in the fields that they accept beside OpenAI's."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import aiohttp

# SGLang renamed its path and still answers the old one.
SGLANG_PATHS = ("/get_model_info", "/model_info")
SGLANG_FIELD = "model_path"
VLLM_PATH = "/version"
VLLM_FIELD = "version"


class EngineKind(enum.StrEnum):
    """The server whose fields an engine accepts."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    """OpenAI's fields only: a hosted API, which rejects unknown ones."""


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
