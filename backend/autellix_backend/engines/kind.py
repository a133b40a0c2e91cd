"""What sort of server an engine is, because each takes other fields beside OpenAI's."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import aiohttp

# Both spellings: SGLang renamed its path and answers the old one still.
SGLANG_PATHS = ("/get_model_info", "/model_info")
SGLANG_FIELD = "model_path"
VLLM_PATH = "/version"
VLLM_FIELD = "version"


class EngineKind(enum.StrEnum):
    """Whose fields an engine takes."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    """OpenAI's only: a hosted API, which refuses what it does not know."""


async def detect_kind(base_url: str, timeout_s: float) -> EngineKind:
    """Tell by paths that only one sort of server answers; one that answers none takes OpenAI's fields."""
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
