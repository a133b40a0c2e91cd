"""The facts of an engine for the gateways that connect to it."""

from __future__ import annotations

import importlib.metadata
import math
import secrets
from typing import Any

from autellix_backend.core.machine import Machine
from autellix_backend.reports.link import EngineFacts
from autellix_backend.vllm_plugin.compatibility import vllm_version


def facts_of(vllm_config: Any, machine: Machine, kv_tokens: float, rank: int) -> EngineFacts:
    """Return the facts of an engine that has just started.

    Args:
        vllm_config: vLLM's.
        machine: Orders its calls.
        kv_tokens: The tokens that fit into its KV memory.
        rank: Its data-parallel rank.
    """
    return EngineFacts(
        engine=secrets.token_hex(8),
        rank=rank,
        version=_version("autellix"),
        vllm=vllm_version(),
        policy=machine.policy.name,
        has_admission=machine.admission.memory is not None,
        slots=int(vllm_config.scheduler_config.max_num_seqs),
        kv_tokens=int(kv_tokens) if kv_tokens < math.inf else None,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # Copied without its metadata.
        return "unknown"
