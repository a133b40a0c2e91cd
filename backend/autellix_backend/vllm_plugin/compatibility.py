"""Whether the installed vLLM has the names that our scheduler uses, and is a release that we know."""

from __future__ import annotations

import importlib.metadata
import re
from operator import attrgetter
from typing import Any

KNOWN_VERSIONS = ("0.32", "0.33")
"""The releases of vLLM that the tests and the suite of features have run on."""

_HOOKS = ("_free_request", "_handle_stopped_request", "_preempt_request", "schedule", "update_from_output")
"""Methods of vLLM's scheduler that ours overrides: under another name they would not be called."""
_NAMES = (
    "deferred_waiting",
    "finished_recving_kv_req_ids",
    "kv_cache_manager.allocate_slots",
    "kv_cache_manager.block_pool.free_block_queue.append_n",
    "kv_cache_manager.block_pool.free_block_queue.remove",
    "kv_cache_manager.block_pool.get_cached_block",
    "kv_cache_manager.block_pool.get_num_free_blocks",
    "kv_cache_manager.block_pool.num_gpu_blocks",
    "kv_cache_manager.coordinator.single_type_managers",
    "kv_cache_manager.enable_caching",
    "kv_cache_manager.get_blocks",
    "kv_cache_manager.kv_cache_config.kv_cache_groups",
    "kv_holding_waiting",
    "lora_config",
    "max_model_len",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "policy",
    "prefill_capacity_bound",
    "prev_step_scheduled_req_ids",
    "requests",
    "running",
    "vllm_config.parallel_config.data_parallel_rank",
    "waiting",
)


def why_incompatible(scheduler: Any) -> str | None:
    """Return why our scheduler must leave this engine alone; None if it may order its calls.

    Args:
        scheduler: vLLM's scheduler, with our class mixed in.
    """
    base = next(each for each in type(scheduler).__mro__ if each.__module__.startswith("vllm."))
    missing = [name for name in _HOOKS if not hasattr(base, name)]
    missing += [name for name in _NAMES if not _has(scheduler, name)]
    return f"this vLLM {vllm_version()} lacks {', '.join(missing)}" if missing else None


def is_known_release() -> bool:
    """Whether the installed vLLM is a release that the tests have run on."""
    found = re.match(r"\d+\.\d+(?=\.|$)", vllm_version())
    return found is not None and found[0] in KNOWN_VERSIONS


def vllm_version() -> str:
    """Return the version of the installed vLLM."""
    import vllm

    return str(vllm.__version__)


def plugin_version() -> str:
    """Return the version of our scheduler."""
    try:
        return importlib.metadata.version("autellix")
    except importlib.metadata.PackageNotFoundError:
        # Copied without its metadata.
        return "unknown"


def engine_rank(vllm_config: Any) -> int:
    """Return the data-parallel rank of an engine core, from 0."""
    parallel = vllm_config.parallel_config
    # vLLM sets the rank itself to 0 where the ranks are independent of each other.
    return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))


def _has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
