"""A process that plays short scenes on vLLM's real scheduler: its own, or with our class.

There is no model: each scheduled request whose context is complete gets made-up tokens, and a step takes a
fixed time on a virtual clock. Reads one JSON scene per line, `{"scene": its name, ...}`, from standard input
and answers with one JSON line on the given descriptor. `test_vllm_rules.py` has the scenes' meaning.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import torch
from tests.counting import calls_made
from tests.vllm_plugin.changed_vllm import CHANGES
from tests.vllm_plugin.whisper_model import write_whisper
from vllm import SamplingParams
from vllm.config.diffusion import DiffusionConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_backend.vllm_plugin import trial
from autellix_backend.vllm_plugin.scheduler import AutellixScheduler
from autellix_backend.vllm_plugin.trial import why_unfit

BLOCK_TOKENS = 16
MAX_CONTEXT_TOKENS = 4096
_MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1 << 15,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_CONTEXT_TOKENS,
    "torch_dtype": "float32",
}


class Engine:
    """One scheduler, stepped in virtual time."""

    def __init__(
        self,
        scheduler: dict[str, Any] | None,
        *,
        blocks: int = 1000,
        slots: int = 4,
        step_s: float = 0.01,
        prefill_s: float = 0.0,
        accepted: int = 0,
        is_async: bool = False,
        is_pipelined: bool = False,
        may_degrade: bool = False,
        diffusion: DiffusionConfig | None = None,
        **options: Any,
    ) -> None:
        """Make a scheduler.

        Args:
            scheduler: Our settings; None for vLLM's own scheduler.
            blocks: The KV blocks that requests may fill.
            slots: The most running requests.
            step_s: The time that each step takes (s).
            prefill_s: The time that each token of a prefill adds (s).
            accepted: The drafts that are accepted in each decode step.
            is_async: Whether vLLM schedules asynchronously.
            is_pipelined: Whether it schedules each step before the one before it has ended.
            may_degrade: Whether our part may fail.
            diffusion: Of a diffusion model.
            options: Of vLLM's engine.
        """
        arguments: dict[str, Any] = {
            "model": sys.argv[2],
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "max_model_len": MAX_CONTEXT_TOKENS,
            "block_size": BLOCK_TOKENS,
            "max_num_seqs": slots,
            "max_num_batched_tokens": 8192,
            "additional_config": {"autellix": {"scheduler": scheduler or {}}},
        }
        config = EngineArgs(**arguments | options).create_engine_config()
        # The CPU platform turns it off.
        config.scheduler_config.async_scheduling = is_async
        config.diffusion_config = diffusion
        config.cache_config.num_gpu_blocks = blocks + 1
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        stock: Any = config.scheduler_config.get_scheduler_cls()
        self.scheduler = (stock if scheduler is None else AutellixScheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks + 1,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.now = 0.0
        self.steps = 0
        self.added = 0
        self.scheduler.clock = lambda: self.now
        self.plugin = getattr(self.scheduler, "plugin", None)
        self._step_s, self._prefill_s = step_s, prefill_s
        self._accepted = accepted
        self._is_pipelined = is_pipelined
        self._under_way: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.meanwhile: Callable[[], None] = lambda: None
        """Called between the schedule of each step and its end."""
        self._may_degrade = may_degrade
        self._drafts = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
        self._generator = random.Random(1)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)

    def tokens(self, count: int) -> list[int]:
        """Make up tokens."""
        return [self._generator.randrange(1 << 15) for _ in range(count)]

    def add(
        self, call_id: str, prompt: int | list[int], max_tokens: int, program: str = "", **fields: Any
    ) -> Request:
        """Add a request that arrives now, by default of a program of its own; return it."""
        extra_args = fields.pop("extra_args", {}) | ({"autellix_program": program} if program else {})
        request = Request(
            request_id=call_id,
            prompt_token_ids=self.tokens(prompt) if isinstance(prompt, int) else list(prompt),
            sampling_params=SamplingParams(
                temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra_args
            ),
            pooling_params=None,
            block_hasher=self._hasher,
            **fields,
        )
        self.scheduler.add_request(request)
        self.added += 1
        return request

    def step(self, *args: Any) -> dict[str, int]:
        """Make a step; return how many tokens each request was scheduled."""
        scheduler, output = self.scheduler, self.scheduler.schedule(*args)
        scheduled: dict[str, int] = dict(output.num_scheduled_tokens)
        requests = {call_id: scheduler.requests[call_id] for call_id in scheduled}
        prefilled = sum(count for count in scheduled.values() if count > 1 + self._drafts)
        self.now += self._step_s + self._prefill_s * prefilled
        sampled = []
        for call_id, request in requests.items():
            drafts = output.scheduled_spec_decode_tokens.get(call_id, ())
            sampled.append([] if request.is_prefill_chunk else self.tokens(1 + self._taken(len(drafts))))
        places = {call_id: place for place, call_id in enumerate(scheduled)}
        self._under_way.append(
            (output, ModelRunnerOutput(req_ids=[*places], req_id_to_index=places, sampled_token_ids=sampled))
        )
        self.meanwhile()
        if len(self._under_way) > self._is_pipelined:
            scheduler.update_from_output(*self._under_way.popleft())
        if self._drafts:
            drafting = [call_id for call_id in places if call_id in scheduler.requests]
            drafts = [self.tokens(self._drafts) for _ in drafting]
            scheduler.update_draft_token_ids(DraftTokenIds(drafting, drafts))
        self.steps += 1
        if self.plugin is not None:
            self.plugin.tracker.machine.check()
            assert not scheduler.is_degraded or self._may_degrade
        return scheduled

    def finish(self, most_steps: int = 2000) -> int:
        """Step until no request is left; return the number of steps, `most_steps` at most."""
        steps = 0
        while self.scheduler.requests and steps < most_steps:
            self.step()
            steps += 1
        return steps

    def drain(self) -> None:
        """End the steps that are under way."""
        while self._under_way:
            self.scheduler.update_from_output(*self._under_way.popleft())

    def reports(self) -> list[Any]:
        """Return the list to which the reports of calls are added from now on."""
        reports: list[Any] = []
        if self.plugin is not None:
            tracker: Any = self.plugin.tracker
            close = tracker.close
            tracker.close = lambda *args, **left: reports.append(close(*args, **left))
        return reports

    def _taken(self, drafts: int) -> int:
        return min(drafts, self._accepted)


DRAFTING = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


def rotation(*, drafts: bool, is_async: bool) -> dict[str, Any]:
    """Let six long calls share two slots by round robin."""
    scheduler = {"policy": "round_robin", "bounds": [0.2], "preemption": "always"}
    options: Any = {"speculative_config": DRAFTING} if drafts else {}
    engine = Engine(scheduler, slots=2, accepted=1, is_async=is_async, **options)
    for number in range(6):
        engine.add(f"call-{number}", 40, 200)
    engine.finish()
    assert engine.plugin is not None
    return {"preemptions": engine.plugin.decisions.slot_preemptions}


def prices(*, drafts: bool) -> dict[str, Any]:
    """Let calls of 100 and 21 tokens arrive one by one; return what the engine has learned and reported."""
    options: Any = {"speculative_config": DRAFTING} if drafts else {}
    engine = Engine({"policy": "fcfs", "service": "tokens"}, slots=8, prefill_s=0.001, accepted=1, **options)
    plugin: Any = engine.plugin
    reports = engine.reports()
    for number in range(12):
        engine.add(f"call-{number}", 100, 21)
        for _ in range(5):
            engine.step()
    engine.finish()
    return {
        "recompute_s": plugin.prices._costs.recompute_s(100),
        "services_s": {round(report.service_s, 9) for report in reports},
        "prefilled_s": {report.prefilled_s for report in reports},
    }


def reset(*, is_ours: bool) -> dict[str, Any]:
    """Reset the cache while a program runs and another is idle; return how long a third one waits."""
    engine = Engine({"policy": "boost", "token_s": 1.0} if is_ours else None, blocks=40)
    engine.add("runs-1", 100, 100, program="runs")
    engine.add("idle-1", 350, 10, program="idle")
    for _ in range(20):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.add("new-1", 350, 10, program="new")
    steps = 1
    while "new-1" not in engine.step() and steps < 1000:
        steps += 1
    engine.finish()
    return {"steps": steps}


def session(*, is_ours: bool, is_async: bool) -> dict[str, Any]:
    """Let a session hold 16 of 25 blocks between two parts; return how long a call of nine blocks waits."""
    scheduler = {"policy": "boost", "token_s": 1.0} if is_ours else None
    engine = Engine(scheduler, blocks=25, is_async=is_async)
    engine.add("session", 245, 4, program="session", resumable=True)
    for _ in range(10):
        engine.step()
    new = engine.add("new", 120, 10)
    steps = 1
    while "new" not in engine.step() and steps < 1000:
        steps += 1
    engine.add("session", 3, 4, program="session", resumable=True)
    parts = engine.step()
    for _ in range(20):
        engine.step()
    reports = engine.reports()
    engine.add("session", 1, 1)
    left = engine.scheduler.get_num_unfinished_requests()
    ends = [(report.finish_reason, report.is_aborted) for report in reports]
    return {
        "steps": steps,
        "is_done": new.is_finished(),
        "next_part": parts["session"],
        "left": left,
        "ends": ends,
    }


def sessions(*, seed: int, policy: str, is_async: bool) -> dict[str, Any]:
    """Let sessions get parts, end and vanish at any moment, beside other calls; return what is left."""
    generator = random.Random(seed)
    engine = Engine(
        {"policy": policy, "admission": "working_set", "preemption": "always", "bounds": [0.05, 0.2]},
        blocks=48,
        slots=5,
        is_async=is_async,
        is_pipelined=is_async,
    )
    scheduler, plugin = engine.scheduler, engine.plugin
    assert plugin is not None
    paused = 0
    for step in range(500):
        what = generator.choice(["call", "call", "part", "part", "end", "abort", *["step"] * 12])
        names = [f"session-{generator.randrange(3)}", *scheduler.requests]
        if what == "call":
            program = f"program-{generator.randrange(4)}"
            engine.add(f"call-{step}", generator.choice([20, 150]), 30, program=program)
        elif what == "part":
            engine.add(names[0], generator.choice([5, 40]), generator.choice([1, 6]), resumable=True)
        elif what == "end" and names[0] in scheduler.requests:
            engine.add(names[0], 1, 1)
        elif what == "abort":
            scheduler.finish_requests(generator.choice(names), RequestStatus.FINISHED_ABORTED)
        engine.step()
        for name, request in scheduler.requests.items():
            is_paused = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
            assert plugin.tracker.machine.call(name).is_paused == is_paused, name
            paused += is_paused
    for name in [name for name in scheduler.requests if name.startswith("session")]:
        engine.add(name, 1, 1)
    engine.finish()
    statistics = plugin.tracker.machine.table.statistics
    pool = scheduler.kv_cache_manager.block_pool
    left = (len(scheduler.requests), len(plugin.tracker), statistics.live, 48 - pool.get_num_free_blocks())
    return {"left": left, "paused": paused, "preemptions": plugin.decisions.slot_preemptions}


class Gateway:
    """The report server of an engine, which keeps the reports of calls in a list."""

    has_gateways = True
    dropped_records = 0

    def __init__(self) -> None:
        self.reports: list[EngineReport] = []

    def send(self, gateway: str, report: EngineReport) -> None:
        """Keep a report."""
        self.reports.append(EngineReport.from_bytes(report.to_bytes()))

    def take_ends(self) -> tuple[str, ...]:
        """Return no program."""
        return ()

    def broadcast(self, snapshot: EngineSnapshot) -> None:
        """Drop a snapshot."""

    def hold(self) -> None:
        """Do nothing: there is no thread."""

    release = close = hold


def balance(*, seed: int, policy: str, is_async: bool, is_pipelined: bool) -> dict[str, Any]:
    """Let clients vanish between steps and during them; return what was charged, and what the steps took."""
    generator = random.Random(seed)
    engine = Engine(
        {"policy": policy, "preemption": "always", "bounds": [0.05, 0.2]},
        blocks=60,
        slots=5,
        prefill_s=0.001,
        is_async=is_async,
        is_pipelined=is_pipelined,
        max_num_batched_tokens=128,
    )
    scheduler, plugin = engine.scheduler, engine.plugin
    assert plugin is not None
    gateway: Any = Gateway()
    plugin.tracker.reports = gateway
    machine, steps, aborted = plugin.tracker.machine, plugin._steps, Counter[str]()
    ran: list[float] = []
    shared: list[float] = []
    end_step, charge_share = steps.end, machine.shares.charge

    def end(output: Any, now: float) -> float:
        cost_s: float = end_step(output, now)
        ran.append(cost_s * len(output.num_scheduled_tokens))
        return cost_s

    def charge(tenant: str, cost_s: float) -> None:
        shared.append(cost_s)
        charge_share(tenant, cost_s)

    def abort() -> None:
        if generator.random() < 0.15 and scheduler.requests:
            name = generator.choice(list(scheduler.requests))
            is_under_way = bool(steps.count_with(name))
            aborted["under way" if is_under_way else "between"] += 1
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if generator.random() < 0.3 and not is_under_way:
                # A client that asks again at once, by the same id: vLLM would give it the other's output.
                add(name)

    def add(name: str) -> None:
        program = f"program-{generator.randrange(4)}"
        identity = {"autellix_tenant": generator.choice("ab"), "autellix_last": generator.randrange(2)}
        prompt, answer = generator.choice([20, 150, 300]), generator.choice([1, 10, 40])
        engine.add(name, prompt, answer, program=program, extra_args=identity)

    steps.end, machine.shares.charge, engine.meanwhile = end, charge, abort
    for step in range(400):
        if generator.random() < 0.4:
            add(f"call-{step}")
        abort()
        engine.step()
    engine.meanwhile = lambda: None
    engine.finish()
    engine.drain()
    return {
        "ran_s": sum(ran),
        "shared_s": sum(shared),
        "reported_s": sum(report.service_s for report in gateway.reports),
        "reports": len(gateway.reports),
        "aborted": aborted,
        "unreported": len(plugin.tracker._left),
        "calls": engine.added,
    }


def held_back() -> dict[str, Any]:
    """Let admission hold back five of eight calls that have slots; return what vLLM counts then and later."""
    engine = Engine({"policy": "boost"}, blocks=40, slots=8)
    scheduler, counts = engine.scheduler, []

    def count() -> None:
        stats = scheduler.make_stats()
        waiting = (stats.num_running_reqs, stats.num_waiting_reqs, stats.num_skipped_waiting_reqs)
        counts.append((*waiting, scheduler.prefill_capacity_bound))

    for number in range(8):
        engine.add(f"call-{number}", 150, 5 + number)
    engine.step()
    count()
    scheduler.finish_requests("call-7", RequestStatus.FINISHED_ABORTED)
    engine.step()
    count()
    unfinished = scheduler.get_num_unfinished_requests()
    engine.finish()
    count()
    return {"counts": counts, "unfinished": unfinished, "deferred": len(scheduler.deferred_waiting)}


def prefilled_elsewhere(*, is_remote: bool) -> dict[str, Any]:
    """Let a call arrive that fits, but not into what admission fills; return which calls ran then."""
    engine = Engine({"policy": "boost"}, blocks=40)
    for number in range(3):
        engine.add(f"call-{number}", 150, 20)
    engine.step()
    transfer = {"do_remote_prefill": True, "remote_engine_id": "other"} if is_remote else {}
    engine.add("new", 130, 5, extra_args={"kv_transfer_params": transfer})
    ran = engine.step()
    engine.finish()
    return {"ran": list(ran)}


def changed_signature() -> dict[str, Any]:
    """Let vLLM allocate blocks by a method that takes other arguments than ours knows."""
    engine = Engine({"policy": "plas"}, blocks=20, may_degrade=True)
    blocks: Any = engine.plugin.engine.blocks  # type: ignore[union-attr]
    note = blocks._on_refused
    blocks._on_refused = lambda which, wanted, **options: note(which=which, wanted=wanted, options=options)
    calls = [engine.add(f"call-{number}", 150, 5) for number in range(4)]
    engine.finish()
    return {
        "finished": sum(call.is_finished() for call in calls),
        "is_degraded": engine.scheduler.is_degraded,
    }


def _options_of(kind: str) -> dict[str, Any]:
    """Return vLLM's options for a kind of model: `pooling`, `encoder` (and decoder), or any other."""
    if kind == "encoder":
        model = str(write_whisper(Path(sys.argv[2]) / "whisper"))
        return {"model": model, "skip_tokenizer_init": False, "max_model_len": 448}
    return {"runner": "pooling", "convert": "embed"} if kind == "pooling" else {}


def on_trial(*, change: str, is_async: bool, kind: str = "") -> dict[str, Any]:
    """Make a scheduler on a release that nobody knows, which a change of vLLM's behaviour may have."""
    lines: list[str] = []
    took_s: list[float] = []
    options = _options_of(kind)

    def time_trial(scheduler: Any) -> str | None:
        started_s = time.process_time()
        problem = why_unfit(scheduler)
        took_s.append(time.process_time() - started_s)
        return problem

    logger = logging.getLogger("vllm.autellix")
    with ExitStack() as stack:
        # vLLM 0.33 drops handlers as it makes its first engine.
        warn = mock.patch.object(logger, "warning", lambda text, *values: lines.append(text % values))
        stack.enter_context(warn)
        stack.enter_context(mock.patch("vllm.__version__", "0.99.0"))
        if change:
            stack.enter_context(CHANGES[change]())
        stack.enter_context(mock.patch.object(trial, "why_unfit", time_trial))
        engine = Engine({"policy": "plas"}, is_async=is_async, may_degrade=True, **options)
    calls = [engine.add(f"call-{number}", 40, 5) for number in range(4)]
    engine.finish()
    return {
        "lines": lines,
        "is_degraded": engine.scheduler.is_degraded,
        "finished": sum(call.is_finished() for call in calls),
        "took_s": sum(took_s),
    }


def diffusion(*, is_async: bool) -> dict[str, Any]:
    """Return the scheduler of a diffusion model."""
    engine = Engine({}, diffusion=DiffusionConfig(canvas_length=8), is_async=is_async)
    return {"scheduler": type(engine.scheduler).__name__}


def crowd(*, calls: int, policy: str) -> dict[str, Any]:
    """Let a program have this many calls; return the work of an arrival, of steps and of an end of one."""
    engine = Engine({"policy": policy, "boost": 1.0}, blocks=4000, slots=4)
    plugin: Any = engine.plugin
    plugin.tracker.machine.table.statistics.sizes_of("").known = 2.0
    for number in range(calls):
        engine.add(f"call-{number}", 40, 50, program="crowd")
    engine.add("other", 40, 50, program="other")
    for _ in range(10):
        engine.step()
    finish = partial(engine.scheduler.finish_requests, finished_status=RequestStatus.FINISHED_ABORTED)
    events = (
        partial(engine.add, "late", 40, 50, program="crowd"),
        engine.scheduler.schedule,
        partial(finish, "late"),
        engine.scheduler.schedule,
        partial(finish, "call-1"),
        engine.scheduler.schedule,
    )
    work = sum(map(calls_made, events))
    assert not engine.scheduler.is_degraded
    return {"work": work}


def moved(*, seed: int) -> dict[str, Any]:
    """Let programs move as their calls arrive and end; each step, vLLM's order must be the machine's."""
    generator = random.Random(seed)
    engine = Engine({"policy": "boost", "boost": 1.0}, blocks=4000, slots=6)
    plugin: Any = engine.plugin
    machine = plugin.tracker.machine
    machine.table.statistics.sizes_of("").known = 2.0
    moves = 0
    for step in range(300):
        for _ in range(generator.choice([0, 0, 1, 2])):
            program = f"program-{generator.randrange(5)}"
            engine.add(f"call-{step}-{generator.random()}", generator.choice([20, 200]), 20, program=program)
        if generator.random() < 0.1 and engine.scheduler.requests:
            leaving = generator.choice(list(engine.scheduler.requests))
            engine.scheduler.finish_requests(leaving, RequestStatus.FINISHED_ABORTED)
        before = [call.call_id for call in machine]
        plugin.make_room(engine.now)
        order = [call.call_id for call in machine]
        moves += before != order
        waiting = [request.request_id for request in engine.scheduler.waiting]
        rank_of = plugin.engine.order.rank
        running = {request.request_id: rank_of(request).number for request in engine.scheduler.running}
        assert waiting == [call_id for call_id in order if call_id not in running]
        assert sorted(running, key=running.__getitem__) == [name for name in order if name in running]
        if waiting:
            assert engine.scheduler.waiting.peek_request().request_id == waiting[0]
        engine.step()
    engine.finish()
    return {"moves": moves, "left": len(engine.scheduler.requests)}


def cadence() -> dict[str, Any]:
    """Let short calls interrupt two long ones while vLLM begins prefills in every eighth step only."""
    scheduler = {"policy": "plas", "bounds": [0.1], "preemption": "always"}
    engine = Engine(scheduler, slots=2, prefill_schedule_interval=8)
    assert engine.plugin is not None
    decisions, before, wasted = engine.plugin.decisions, 0, 0
    # Before 0.33, vLLM leaves the count to the engine core of data-parallel ranks.
    counts_itself = hasattr(engine.scheduler, "local_prefill_interval")
    running: set[str] = set()
    for number in range(2):
        engine.add(f"long-{number}", 40, 600)
    while engine.steps < 600:
        # Soon after a long call has got its slot back.
        if engine.steps > 40 and engine.steps % 20 in (0, 9):
            engine.add(f"short-{engine.steps}", 40, 5)
        scheduled = engine.step() if counts_itself else engine.step(engine.steps % 8 != 0)
        # A slot that was freed and that nobody took.
        wasted += decisions.slot_preemptions > before and scheduled.keys() <= running
        before, running = decisions.slot_preemptions, set(scheduled)
    return {"preemptions": before, "wasted": wasted}


def adapters(*, busy: int) -> dict[str, Any]:
    """Keep as many slots busy with one LoRA adapter, and let a call of another arrive; there is one place."""
    scheduler = {"policy": "plas", "bounds": [0.05], "preemption": "always"}
    engine = Engine(scheduler, slots=busy, enable_lora=True, max_loras=1)
    assert engine.plugin is not None
    first, second = (LoRARequest(name, number, name) for number, name in enumerate("ab", start=1))
    steps = None
    for number in range(busy):
        engine.add(f"a-{number}", 40, 400, lora_request=first)
    for _ in range(20):
        engine.step()
    engine.add("b", 40, 5, lora_request=second)
    for step in range(1, 200):
        if "b" in engine.step() and steps is None:
            steps = step
    return {"preemptions": engine.plugin.decisions.slot_preemptions, "steps": steps}


def tenants(*, policy: str, names: list[str], has_cache: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Let four calls arrive whose prompts take many steps, and of which memory holds one; count the steps."""
    prompts = [random.Random(number).randrange(200, 227) for number in range(4)]
    steps = []
    for scheduler in (None, {"policy": policy, **options}):
        engine = Engine(
            scheduler,
            blocks=17,
            step_s=0.3,
            max_num_batched_tokens=64,
            long_prefill_token_threshold=8,
            enable_prefix_caching=has_cache,
        )
        for number, prompt in enumerate(prompts):
            tenant = names[number % len(names)]
            arguments = {"autellix_tenant": tenant} if tenant else {}
            engine.add(f"call-{number}", prompt, 4, f"{tenant}-{number}", extra_args=arguments)
            engine.step()
        steps.append(engine.finish())
    return {"stock": steps[0], "ours": steps[1]}


def alone(*, is_ours: bool) -> dict[str, Any]:
    """Let a long prompt fill the memory under a cap on prefills, while other calls wait."""
    engine = Engine({} if is_ours else None, blocks=40, slots=8, long_prefill_token_threshold=16)
    engine.add("long", 600, 5)
    for number in range(3):
        engine.add(f"call-{number}", 150, 5)
    return {"tokens": [engine.step().get("long") for _ in range(3)]}


def _skip(engine: Engine) -> None:
    """Have vLLM pass over the call `skipped`, for a reason that nobody else knows."""
    scheduler: Any = engine.scheduler
    is_ready = scheduler._handle_blocked_waiting_request
    scheduler._handle_blocked_waiting_request = lambda each: each.request_id != "skipped" and is_ready(each)


def looked_at() -> dict[str, Any]:
    """Let vLLM pass over a call while a slot is free, which another one then takes; count the preemptions."""
    engine = Engine({"policy": "plas", "bounds": [0.05], "preemption": "always"}, slots=2)
    assert engine.plugin is not None
    _skip(engine)
    engine.add("long", 40, 200)
    for _ in range(20):
        engine.step()
    engine.add("skipped", 40, 5)
    engine.step()
    engine.add("other", 40, 200)
    preemptions = []
    for _ in range(40):
        engine.step()
        preemptions.append(engine.plugin.decisions.slot_preemptions)
    return {"preemptions": [preemptions[14], preemptions[-1]]}


def passed_over(*, steps: int, budget: int, is_async: bool) -> dict[str, Any]:
    """Let vLLM skip a call that should have the only slot, and count the preemptions."""
    engine = Engine(
        {"policy": "plas", "bounds": [0.05], "preemption": "always"},
        slots=1,
        is_async=is_async,
        is_pipelined=is_async,
        max_num_batched_tokens=budget,
    )
    assert engine.plugin is not None
    _skip(engine)
    engine.add("long", 40, steps)
    for _ in range(20):
        engine.step()
    engine.add("skipped", 40, 5)
    for _ in range(steps - 40):
        engine.step()
    return {"preemptions": engine.plugin.decisions.slot_preemptions}


def kept_by_connector() -> dict[str, Any]:
    """Let a connector hold the blocks of calls that have ended, and another call run beside them."""
    engine = Engine({"policy": "plas"}, blocks=40)
    scheduler: Any = engine.scheduler
    scheduler._connector_finished = lambda _: (True, None)
    for number in range(3):
        engine.add(f"ended-{number}", 150, 5)
    for _ in range(8):
        engine.step()
    engine.add("running", 40, 5)
    engine.step()
    assert engine.plugin is not None
    return {
        "held": [each.is_finished() for each in scheduler.requests.values()],
        "keeps": engine.plugin.engine.blocks.keep_contexts(),
    }


SCENES: tuple[Callable[..., dict[str, Any]], ...] = (
    rotation,
    prices,
    reset,
    session,
    sessions,
    balance,
    held_back,
    prefilled_elsewhere,
    changed_signature,
    on_trial,
    diffusion,
    crowd,
    moved,
    cadence,
    adapters,
    tenants,
    alone,
    looked_at,
    passed_over,
    kept_by_connector,
)


def main() -> None:
    """Play scenes until standard input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w")
    model = Path(sys.argv[2])
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(_MODEL_CONFIG))
    for line in sys.stdin:
        try:
            options = json.loads(line)
            name = options.pop("scene")
            reply = next(scene for scene in SCENES if scene.__name__ == name)(**options)
        except Exception:  # noqa: BLE001 -- process boundary: the test reads the error
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply, default=sorted) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
