"""vLLM on this machine's CPU inside this process, stepped by hand, with our scheduler class on top."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autellix_backend.core.preemption import PreemptionCosts, Resume, ResumeKind
from autellix_backend.engines.vllm_command import (
    GIB,
    IN_PROCESS_EXECUTOR,
    SCHEDULER_CLASS,
    kv_transfer_config,
)
from autellix_lab.bench.mixes import Mix
from autellix_lab.sim.calibrate import MeasuredCall

SLOTS = 4
"""Batch of the demo's engine."""
TOKEN_BUDGET = 2048
BLOCK_TOKENS = 32
"""vLLM's smallest on CPUs, so that short contexts fill blocks too; its default there is 128."""
MAX_CONTEXT_TOKENS = 4096
ANSWERED = 8
"""Tokens that a call has decoded when it is preempted."""
HELD_STEPS = 6
"""Empty steps after a preemption, in which its last stores end."""
WORDS = range(300, 2000)
"""Token ids that prompts are drawn from."""

Moved = tuple[float, float, float]
"""Jobs, blocks and seconds of the copies."""


@dataclass(slots=True)
class _Open:
    client: int
    internal_id: str
    steps: int = 0
    service_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """One call that resumed."""

    tokens: int
    kind: ResumeKind
    seconds: float
    steps: int


class ForcedWay(PreemptionCosts):
    """Replaces the connector's prices: every context is restored in one way."""

    def __init__(self, kind: ResumeKind) -> None:
        super().__init__()
        self._way = Resume(kind=kind, seconds=0.0, prefill_s=0.0)

    def resume(self, tokens: int, *, stored_tokens: int, token_bytes: float) -> Resume:  # noqa: ARG002
        """Return this way."""
        return self._way


class SteppedEngine:
    """vLLM in this process, stepped by hand."""

    def __init__(
        self,
        model: Path,
        host_gib: float | None,
        *,
        policy: str = "fcfs",
        slots: int = SLOTS,
        kv_blocks: int | None = None,
        has_prefix_cache: bool = False,
    ) -> None:
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        offload = None
        if host_gib is not None:
            offload = KVTransferConfig(**kv_transfer_config(int(host_gib * GIB)))
        config = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=MAX_CONTEXT_TOKENS,
            block_size=BLOCK_TOKENS,
            max_num_seqs=slots,
            max_num_batched_tokens=TOKEN_BUDGET,
            num_gpu_blocks_override=kv_blocks,
            enable_prefix_caching=has_prefix_cache,
            scheduler_cls=SCHEDULER_CLASS,
            distributed_executor_backend=IN_PROCESS_EXECUTOR,
            additional_config={"autellix": {"scheduler": {"policy": policy}}},
            kv_transfer_config=offload,
            disable_log_stats=True,
        ).create_engine_config()
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        self._engine = LLMEngine.from_vllm_config(config)
        self.scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self._noting
        self._scheduled: dict[str, int] = {}
        self._numbers = itertools.count()
        self.prompts: Counter[str] = Counter()
        """Tokens of the prompts that have started, and those that the cache had or that were loaded."""
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        self.block_bytes = sum(
            len(group.layer_names) * group.kv_cache_spec.page_size_bytes for group in groups
        )

    def close(self) -> None:
        """Release the engine's memory."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self._engine.engine_core.shutdown()
        del self._engine, self.scheduler, self._schedule
        cleanup_dist_env_and_memory()
        gc.collect()

    def play(self, mix: Mix, seconds: float) -> list[MeasuredCall]:
        """Let the clients of a mix make one call after the other for so long; return the calls' times."""
        ends_s = time.perf_counter() + seconds
        free, running = list(range(mix.clients)), dict[str, _Open]()
        found: list[MeasuredCall] = []
        step = 0
        while running or time.perf_counter() < ends_s:
            if time.perf_counter() < ends_s:
                while free:
                    client = free.pop()
                    name, internal_id = self._add(mix.prompt_tokens, mix.answer_tokens)
                    running[name] = _Open(client, internal_id)
            step_s, outputs = self._step()
            for call in running.values():
                if call.internal_id in self._scheduled:
                    call.steps += 1
                    call.service_s += step_s
            for output in outputs:
                if output.finished:
                    call = running.pop(output.request_id)
                    free.append(call.client)
                    found.append(_measured(mix, call, step))
            step += bool(self._scheduled)
        return found

    def resume(self, tokens: int, kind: ResumeKind) -> Resumed:
        """Preempt a call of so many tokens, and time its resume."""
        if self.has_host_memory:
            self.scheduler.connector.costs = ForcedWay(kind)
        name, internal_id = self._add(tokens - ANSWERED, 4 * ANSWERED)
        while self._written(self._step()[1], name) < ANSWERED:
            pass
        scheduler = self.scheduler
        scheduler.plugin.engine.preempt(scheduler.requests[internal_id], scheduler.clock())
        slots, scheduler.max_num_active_reqs = scheduler.max_num_active_reqs, 0
        for _ in range(HELD_STEPS):
            self._step()
        scheduler.max_num_active_reqs = slots
        loaded = self.moved("load")
        started_s, steps = time.perf_counter(), 1
        while self._written(self._step()[1], name) <= ANSWERED:
            steps += 1
        seconds = time.perf_counter() - started_s
        has_loaded = self.moved("load") != loaded
        assert has_loaded == (kind is ResumeKind.LOAD), "the call resumed in another way"
        self._engine.abort_request([name])
        while scheduler.has_requests():
            self._step()
        return Resumed(tokens, kind, seconds, steps)

    @property
    def has_host_memory(self) -> bool:
        """Whether KV blocks are kept in host memory."""
        return self.scheduler.connector is not None

    def moved(self, direction: str) -> Moved:
        """Return the transfers so far, by the engine's counters."""
        if not self.has_host_memory:
            return 0.0, 0.0, 0.0
        tally = self.scheduler.connector.manager.tally
        return (
            tally["jobs", direction],
            tally["bytes", direction] / self.block_bytes,
            tally["seconds", direction],
        )

    def _add(self, prompt_tokens: int, answer_tokens: int) -> tuple[str, str]:
        return self.add(random.choices(WORDS, k=prompt_tokens), answer_tokens)

    def add(
        self, prompt: list[int], answer_tokens: int, arguments: dict[str, Any] | None = None
    ) -> tuple[str, str]:
        """Add a call; return its name, and the engine's."""
        from vllm import SamplingParams

        name = f"call-{next(self._numbers)}"
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=answer_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args=arguments,
        )
        return name, self._engine.add_request(name, {"prompt_token_ids": prompt}, parameters)

    def step(self) -> list[str]:
        """Make a step; return the names of the calls that it finished."""
        return [output.request_id for output in self._step()[1] if output.finished]

    def _step(self) -> tuple[float, list[Any]]:
        started_s = time.perf_counter()
        outputs = self._engine.step()
        return time.perf_counter() - started_s, outputs

    def _noting(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        self._scheduled = dict(output.num_scheduled_tokens)
        for request in output.scheduled_new_reqs:
            stats = self.scheduler.requests[request.req_id].prefill_stats
            self.prompts["prompt"] += stats.num_prompt_tokens
            self.prompts["cached"] += stats.num_local_cached_tokens
            self.prompts["loaded"] += stats.num_external_cached_tokens
        return output

    @staticmethod
    def _written(outputs: Sequence[Any], name: str) -> int:
        return max(
            (len(output.outputs[0].token_ids) for output in outputs if output.request_id == name), default=0
        )


def _measured(mix: Mix, call: _Open, step: int) -> MeasuredCall:
    return MeasuredCall(
        mix=mix.name,
        finish_step=step,
        engine_steps=call.steps,
        prefill_tokens=mix.prompt_tokens,
        output_tokens=mix.answer_tokens,
        service_s=call.service_s,
    )


@contextmanager
def engine_of(model: Path, host_gib: float | None, **settings: Any) -> Iterator[SteppedEngine]:
    """Start an engine, and end it."""
    engine = SteppedEngine(model, host_gib, **settings)
    try:
        yield engine
    finally:
        engine.close()
