"""A process that runs real vLLM engines, one scenario after another, for the tests of this folder.

Reads one JSON scenario per line from standard input and answers with one JSON line on the given descriptor.
It is a process of its own because vLLM's imports warn, and the tests treat warnings as errors.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_LOGGING_LEVEL="WARNING",
    # One free thread: pinned threads that wait for each other are slow beside anything else on the machine.
    OMP_NUM_THREADS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
)

from vllm import SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.engine.llm_engine import LLMEngine

from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue
from autellix_backend.vllm_plugin.scheduler import (
    AsyncProgramScheduler,
    SyncProgramScheduler,
)

VOCABULARY = 512


class _KeepsComputedTokens:
    """Deliberate fault: a preempted request still believes that its KV blocks are filled."""

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        computed_tokens = request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        request.num_computed_tokens = min(computed_tokens, request.num_tokens - 1)


class _FaultyAsync(_KeepsComputedTokens, AsyncProgramScheduler):
    pass


class _FaultySync(_KeepsComputedTokens, SyncProgramScheduler):
    pass


class _FailsToDecide:
    """Deliberate fault: the decision raises after a while."""

    def _decide(self, now: float) -> Any:
        if self._decision_step > 20:  # type: ignore[attr-defined]
            raise KeyError("deliberate")
        return super()._decide(now)  # type: ignore[misc]


class _FailingSync(_FailsToDecide, SyncProgramScheduler):
    pass


def _scheduler_class(scenario: dict[str, Any]) -> Any:
    is_async = scenario["is_async"]
    return {
        "stock": None,
        "autellix": "autellix_backend.vllm_plugin.scheduler.AutellixScheduler",
        "keeps_computed_tokens": _FaultyAsync if is_async else _FaultySync,
        "fails_to_decide": _FailingSync,
    }[scenario["scheduler"]]


def _make_engine(scenario: dict[str, Any]) -> LLMEngine:
    arguments = EngineArgs(
        model=scenario["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        block_size=32,
        max_num_seqs=scenario["max_num_seqs"],
        max_num_batched_tokens=512,
        num_gpu_blocks_override=scenario["kv_blocks"],
        enable_prefix_caching=scenario["has_prefix_caching"],
        async_scheduling=scenario["is_async"],
        scheduler_cls=_scheduler_class(scenario),
        additional_config=scenario["additional_config"],
        disable_log_stats=True,
    )
    config = arguments.create_engine_config()
    # The CPU platform turns async scheduling off ("not required"); the pipeline works there all the same.
    config.scheduler_config.async_scheduling = scenario["is_async"]
    return LLMEngine.from_vllm_config(config)


def _add(engine: LLMEngine, call: dict[str, Any]) -> None:
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=call["max_tokens"],
        ignore_eos=True,
        detokenize=False,
        extra_args=call.get("extra_args"),
        n=call.get("n", 1),
    )
    engine.add_request(call["id"], {"prompt_token_ids": call["prompt"]}, parameters)


def _play(engine: LLMEngine, scenario: dict[str, Any]) -> dict[str, Any]:
    """Add, abort and step as the scenario says, until nothing is left."""
    pending = sorted(scenario["calls"], key=lambda call: int(call["step"]))
    aborts = {int(step): ids for step, ids in scenario.get("aborts", {}).items()}
    outputs: dict[str, list[int]] = {}
    finished: list[str] = []
    token_owners: list[str] = []
    step = 0
    while pending or engine.has_unfinished_requests():
        while pending and pending[0]["step"] <= step:
            _add(engine, pending.pop(0))
        for request_id in aborts.get(step, []):
            engine.abort_request([request_id])
        for output in engine.step():
            tokens = list(output.outputs[0].token_ids)
            token_owners += [output.request_id] * (len(tokens) - len(outputs.get(output.request_id, ())))
            outputs[output.request_id] = tokens
            if output.finished:
                finished.append(output.request_id)
        step += 1
        if step > scenario.get("max_steps", 20_000):
            raise RuntimeError(f"no end after {step} steps; finished {len(finished)}")
    for _ in range(4):  # let pipelined steps drain
        engine.step()
    return {"outputs": outputs, "finished": finished, "token_owners": token_owners, "steps": step}


def _report(scheduler: Any, free_before: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "scheduler": type(scheduler).__name__,
        "bases": [base.__name__ for base in type(scheduler).__mro__],
        "leaked_blocks": free_before - scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "requests_left": len(scheduler.requests) + len(scheduler.running) + len(scheduler.waiting),
    }
    tracker = getattr(scheduler, "tracker", None)
    if tracker is not None:
        tracker.machine.check()
        report |= {
            "calls_left": len(tracker),
            "is_degraded": scheduler.is_degraded,
            "slot_preemptions": scheduler.slot_preemptions,
            "block_preemptions": scheduler.block_preemptions,
            "programs_left": len(list(tracker.machine.table.programs())),
            "tenants_left": len(tracker.machine.shares),
        }
    return report


def _run(scenario: dict[str, Any]) -> dict[str, Any]:
    engine = _make_engine(scenario)
    try:
        scheduler = engine.engine_core.engine_core.scheduler
        free_before = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        # Every look at the clock is a millisecond, so that a scenario preempts the same way on any machine.
        ticks = itertools.count()
        scheduler.clock = lambda: next(ticks) * 0.001
        preempted: list[str] = []
        preempt = scheduler._preempt_request

        def count_preemption(request: Any, *args: Any, **kwargs: Any) -> None:
            preempted.append(request.request_id)
            preempt(request, *args, **kwargs)

        scheduler._preempt_request = count_preemption
        played = _play(engine, scenario)
        return _report(scheduler, free_before) | played | {"preemptions": len(preempted)}
    finally:
        engine.engine_core.shutdown()
        del engine
        cleanup_dist_env_and_memory()
        gc.collect()


class _Item:
    """As much of a request as a queue looks at."""

    def __init__(self, priority: int) -> None:
        self.priority = priority

    def __lt__(self, other: _Item) -> bool:
        return self.priority < other.priority


def _compare_queues(seed: int) -> dict[str, Any]:
    """Do the same random things to vLLM's priority queue and to ours, and compare what they hold."""
    generator = random.Random(seed)
    theirs, ours = PriorityRequestQueue(), RankedRequestQueue()
    held: list[_Item] = []
    priorities = itertools.count(1)
    for _ in range(3000):
        action = generator.choice(["add", "add", "pop", "remove", "remove_several", "move"])
        if action == "add" or not held:
            item = _Item(next(priorities) * generator.choice([1, 1000]) * 10_000 + next(priorities))
            held.append(item)
            theirs.add_request(item)
            ours.prepend_request(item)
        elif action == "pop":
            assert theirs.peek_request() is ours.peek_request()
            item = ours.pop_request()
            assert theirs.pop_request() is item
            held.remove(item)
        elif action == "remove":
            item = held.pop(generator.randrange(len(held)))
            theirs.remove_request(item)
            ours.remove_request(item)
        elif action == "remove_several":
            gone = {held.pop(generator.randrange(len(held))) for _ in range(min(2, len(held)))} | {_Item(0)}
            theirs.remove_requests(gone)
            ours.remove_requests(gone)
        else:
            item = generator.choice(held)
            theirs.remove_request(item)
            item.priority = next(priorities)
            theirs.add_request(item)
            ours.move_request(item)
        assert len(ours) == len(theirs) == len(held)
        assert bool(ours) == bool(held)
    assert list(ours) == list(theirs)
    assert all(item in ours for item in held)
    return {"held": len(held)}


def _build_model(directory: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        # Wide weights: each token then depends visibly on all before it.
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def main() -> None:
    """Serve scenarios until standard input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w")
    model = Path(sys.argv[2])
    if not (model / "config.json").exists():
        _build_model(model)
    for line in sys.stdin:
        try:
            message = json.loads(line)
            is_check = "compare_queues" in message
            reply = (
                _compare_queues(message["compare_queues"])
                if is_check
                else _run(message | {"model": str(model)})
            )
        except Exception:  # noqa: BLE001 -- process boundary: the test reads the error
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
