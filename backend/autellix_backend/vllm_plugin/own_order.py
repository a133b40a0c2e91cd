"""Tells gateways that an engine runs vLLM's own order, and why.

This module imports nothing of vLLM: the reason may be that a release has moved what our scheduler builds on.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

from autellix_backend.reports.link import EngineFacts, address_of_rank
from autellix_backend.settings import report_secret
from autellix_backend.vllm_plugin.compatibility import engine_rank, plugin_version, vllm_version
from autellix_backend.vllm_plugin.report_server import ReportServer
from autellix_backend.vllm_plugin.settings import PluginSettings

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")


def report_own_order(vllm_config: Any, problem: str) -> ReportServer | None:
    """Log that an engine runs vLLM's own order, and tell gateways, if it has a report address.

    Whatever fails is logged only: the engine starts.

    Args:
        vllm_config: The engine's configuration.
        problem: Why our scheduler is not for this engine.

    Returns:
        What tells gateways, until the process ends or it is closed; None without a report address.
    """
    logger.warning("Autellix: %s; this engine goes on in vLLM's own order", problem)
    try:
        address = PluginSettings.from_additional_config(vllm_config.additional_config).report_address
        if address is None:
            return None
        facts = facts_of(vllm_config, problem)
        return ReportServer(address_of_rank(address, facts.rank), report_secret(), lambda: facts)
    except Exception:
        logger.exception("Autellix: gateways do not learn of it")
        return None


def facts_of(vllm_config: Any, problem: str) -> EngineFacts:
    """Return what gateways learn of an engine in vLLM's own order."""
    return EngineFacts(
        engine=secrets.token_hex(8),
        rank=engine_rank(vllm_config),
        version=plugin_version(),
        vllm=vllm_version(),
        policy=str(vllm_config.scheduler_config.policy),
        has_admission=False,
        slots=int(vllm_config.scheduler_config.max_num_seqs),
        kv_tokens=None,
        is_degraded=True,
        problem=problem,
    )
