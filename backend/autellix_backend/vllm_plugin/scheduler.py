"""The scheduler class for stock vLLM: `--scheduler-cls` with the dotted path of `AutellixScheduler`.

This module imports nothing of vLLM: where a release has moved what our scheduler builds on, the engine still
starts.
"""

from __future__ import annotations

import copy
from typing import Any

from autellix_backend.vllm_plugin.own_order import report_own_order


class AutellixScheduler:
    """Makes our async or sync scheduler, as the engine is configured, or else vLLM's own."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the scheduler that fits the engine; it is not an instance of this class."""
        return _scheduler_class(vllm_config)(vllm_config, *args, **kwargs)


def _scheduler_class(vllm_config: Any) -> Any:
    if vllm_config.diffusion_config is not None:
        # It decodes by whole canvases, which vLLM schedules by a class of its own.
        return _stock_class(vllm_config, "not for diffusion models")
    try:
        from autellix_backend.vllm_plugin import program_scheduler as ours
    except Exception as error:  # noqa: BLE001 -- whatever a strange vLLM does, the engine starts
        return _stock_class(vllm_config, f"not for this vLLM ({error})")
    is_async = vllm_config.scheduler_config.async_scheduling
    return ours.AsyncProgramScheduler if is_async else ours.SyncProgramScheduler


def _stock_class(vllm_config: Any, problem: str) -> Any:
    report_own_order(vllm_config, problem)
    config = copy.copy(vllm_config.scheduler_config)
    config.scheduler_cls = None
    if vllm_config.diffusion_config is not None:
        # As vLLM's configuration chooses it where none is given.
        name = "DiffusionAsyncScheduler" if config.async_scheduling else "DiffusionScheduler"
        config.scheduler_cls = f"vllm.v1.core.sched.diffusion_scheduler.{name}"
    return config.get_scheduler_cls()
