"""Which engines our scheduler leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autellix_backend.vllm_plugin import compatibility
from autellix_backend.vllm_plugin.compatibility import is_known_release, why_incompatible


class VllmScheduler:
    """As much of vLLM's scheduler as is looked at."""

    def __init__(self) -> None:
        pool = SimpleNamespace(
            num_gpu_blocks=2,
            get_num_free_blocks=None,
            get_cached_block=None,
            free_block_queue=SimpleNamespace(remove=None, append_n=None),
        )
        self.kv_cache_manager: Any = SimpleNamespace(
            allocate_slots=None,
            block_pool=pool,
            coordinator=SimpleNamespace(single_type_managers=()),
            enable_caching=True,
            get_blocks=None,
            kv_cache_config=SimpleNamespace(kv_cache_groups=()),
        )
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank=0))
        self.waiting = self.kv_holding_waiting = self.requests = self.running = ()
        self.finished_recving_kv_req_ids = self.prev_step_scheduled_req_ids = frozenset[str]()
        self.max_model_len = self.max_num_running_reqs = self.max_num_scheduled_tokens = 1
        self.policy = "fcfs"
        self.prefill_capacity_bound = False
        self.lora_config = None
        self.deferred_waiting = frozenset[str]()

    def _free_request(self) -> None: ...

    def _handle_stopped_request(self) -> None: ...

    def _preempt_request(self) -> None: ...

    def schedule(self) -> None: ...

    def update_from_output(self) -> None: ...


VllmScheduler.__module__ = "vllm.v1.core.sched.scheduler"


class Ours(VllmScheduler):
    """Overrides a method, as our mixin does."""

    def _preempt_request(self) -> None: ...


@pytest.mark.parametrize(
    ("version", "is_known"),
    [
        *((known, True) for known in ("0.32.0", "0.33.1", "0.33", "0.32.0+cpu", "0.33.2.dev4")),
        *((unknown, False) for unknown in ("0.34.0", "0.31.2", "0.320", "1.0", "dev", "")),
    ],
)
def test_releases_that_are_known(version: str, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "vllm_version", lambda: version)
    assert is_known_release() is is_known
    assert why_incompatible(Ours()) is None


def test_a_name_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "vllm_version", lambda: "0.33.9")
    engine = Ours()
    del engine.kv_cache_manager.block_pool.num_gpu_blocks
    monkeypatch.delattr(VllmScheduler, "_preempt_request")

    assert why_incompatible(engine) == (
        "this vLLM 0.33.9 lacks _preempt_request, kv_cache_manager.block_pool.num_gpu_blocks"
    )
