"""A process that runs real vLLM engines, one scenario after another, for the tests of this folder.

Reads one JSON scenario per line from standard input and answers with one JSON line on the given descriptor.
It is a process of its own because vLLM's imports warn, and the tests treat warnings as errors.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
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

import torch
import vllm
from tests.counting import calls_made
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from autellix_backend import vllm_plugin
from autellix_backend.core.place import WorkClass
from autellix_backend.core.retention import Retention
from autellix_backend.engines.vllm_command import kv_transfer_config
from autellix_backend.kernels.errors import Code, SwapError
from autellix_backend.kernels.job import Direction, Job, Strategy, SwapStats
from autellix_backend.kernels.swap import open_swapper
from autellix_backend.vllm_plugin.offload import policy, spec
from autellix_backend.vllm_plugin.offload.worker import SwapWorker
from autellix_backend.vllm_plugin.program_scheduler import (
    AsyncProgramScheduler,
    SyncProgramScheduler,
)
from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue
from autellix_backend.vllm_plugin.ranks import Rank

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        decisions: Any = self.plugin.decisions  # type: ignore[attr-defined]
        decide, steps = decisions.decide, itertools.count()

        def failing(now: float, **facts: Any) -> Any:
            if next(steps) > 20:
                raise KeyError("deliberate")
            return decide(now, **facts)

        decisions.decide = failing


class _FailingSync(_FailsToDecide, SyncProgramScheduler):
    pass


class _FailsToPreempt:
    """Deliberate fault: what our preemption calls is gone, as if vLLM had renamed it."""

    is_ours = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plugin: Any = self.plugin  # type: ignore[attr-defined]
        make_room = plugin.make_room

        def noting(now: float, **facts: Any) -> None:
            self.is_ours = True
            try:
                make_room(now, **facts)
            finally:
                self.is_ours = False

        plugin.make_room = noting

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self.is_ours:
            raise AttributeError("deliberate")
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]


class _FailsToPreemptSync(_FailsToPreempt, SyncProgramScheduler):
    pass


class _FailsToReview:
    """Deliberate fault: once a request is held back, the review of programs raises in its middle."""

    released: list[str]
    """The waiting requests after the fault, in their order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.released = []
        plugin: Any = self.plugin  # type: ignore[attr-defined]
        engine, tracker = plugin.engine, plugin.tracker
        tokens_of, let_go = engine.tokens_of, engine.order.let_go

        def failing(request_id: str) -> int:
            if sum(map(tracker.is_held_back, self.requests)) > 2:  # type: ignore[attr-defined]
                raise KeyError("deliberate")
            return int(tokens_of(request_id))

        def noting() -> None:
            let_go()
            waiting = self.waiting  # type: ignore[attr-defined]
            self.released = [request.request_id for request in waiting]
            assert bool(waiting)

        engine.tokens_of, engine.order.let_go = failing, noting


class _FailsToReviewSync(_FailsToReview, SyncProgramScheduler):
    pass


class _Watch:
    """Counts what admission does in a run, and what its steps take and are charged."""

    def __init__(self, scheduler: Any) -> None:
        self.held_back = 0
        self.aborted_held_back = 0
        self.contexts: list[tuple[str, int, int, int]] = []
        self.ran_s = self.charged_s = 0.0
        """The time of each step, once for each request in it, and the charges of tenants."""
        self.aborted_in_step = 0
        tracker, steps = scheduler.plugin.tracker, scheduler.plugin._steps
        machine = tracker.machine
        end, charge = steps.end, machine.shares.charge

        def watch_end(output: Any, now: float) -> Any:
            cost_s = end(output, now)
            self.ran_s += cost_s * len(output.num_scheduled_tokens)
            return cost_s

        def watch_charge(tenant: str, cost_s: float) -> None:
            self.charged_s += cost_s
            charge(tenant, cost_s)

        steps.end, machine.shares.charge = watch_end, watch_charge
        arrive, finish_requests = machine.arrive, scheduler.finish_requests

        def watch_arrival(arrival: Any, now: float) -> Any:
            call = arrive(arrival, now)
            self.held_back += not call.is_admitted
            context = arrival.context
            if context is not None:
                shape = (context.tokens, context.shared_tokens, context.prefix_tokens)
                self.contexts.append((call.program_id, *shape))
            return call

        def watch_aborts(request_ids: Any, *args: Any) -> Any:
            request_ids = list(request_ids)
            self.aborted_held_back += sum(map(tracker.is_held_back, request_ids))
            self.aborted_in_step += sum(map(steps.count_with, request_ids))
            return finish_requests(request_ids, *args)

        machine.arrive, scheduler.finish_requests = watch_arrival, watch_aborts


class _Swapper:
    """The machine's own swapper; deliberate faults drop or fail the transfers of a direction.

    `{"drop": "load"}` reports each as done and moves nothing; `{"fail": "store", "every": n}` fails each n-th
    try, the others are done.
    """

    def __init__(self, faults: dict[str, Any]) -> None:
        self._swapper = open_swapper()
        self._faults = faults
        self._tries = {Direction.STORE: 0, Direction.LOAD: 0}
        self._outcomes: dict[int, SwapStats | SwapError] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._swapper, name)

    def submit(self, job: Job) -> int:
        name = job.direction.name.lower()
        self._tries[job.direction] += 1
        handle = -len(self._outcomes) - 1
        if self._faults.get("drop") == name:
            self._outcomes[handle] = SwapStats(
                strategy=Strategy.PER_PAGE, transfers=0, pages=0, bytes=0, seconds=0.0
            )
        elif self._faults.get("fail") == name and self._tries[job.direction] % self._faults["every"] == 0:
            self._outcomes[handle] = SwapError(Code.DEVICE, "")
        else:
            return self._swapper.submit(job)
        return handle

    def poll(self, handle: int) -> SwapStats | None:
        return self._outcome(handle) if handle < 0 else self._swapper.poll(handle)

    def wait(self, handle: int) -> SwapStats:
        return self._outcome(handle) if handle < 0 else self._swapper.wait(handle)

    def _outcome(self, handle: int) -> SwapStats:
        outcome = self._outcomes[handle]
        if isinstance(outcome, SwapError):
            raise outcome
        return outcome


def _failing_retention(faults: dict[str, int]) -> type[Retention[Any]]:
    """The order of host memory; deliberate faults raise in the named methods after so many of their calls."""

    def failing(name: str, after: int) -> Callable[..., Any]:
        tries = itertools.count()

        def fail_later(self: Retention[Any], *args: Any, **kwargs: Any) -> Any:
            if next(tries) >= after:
                raise KeyError("deliberate")
            return getattr(Retention, name)(self, *args, **kwargs)

        return fail_later

    return type("FailingRetention", (Retention,), {name: failing(name, n) for name, n in faults.items()})


def _scheduler_class(scenario: dict[str, Any]) -> Any:
    is_async = scenario["is_async"]
    return {
        "stock": None,
        "autellix": "autellix_backend.vllm_plugin.scheduler.AutellixScheduler",
        "keeps_computed_tokens": _FaultyAsync if is_async else _FaultySync,
        "fails_to_decide": _FailingSync,
        "fails_to_preempt": _FailsToPreemptSync,
        "fails_to_review": _FailsToReviewSync,
    }[scenario["scheduler"]]


def _kv_transfer_config(scenario: dict[str, Any]) -> KVTransferConfig | None:
    host_bytes = scenario.get("kv_host_bytes")
    if host_bytes is None:
        return None
    vars(spec)["open_swapper"] = lambda *_args: _Swapper(scenario.get("swap_faults", {}))
    vars(policy)["Retention"] = _failing_retention(scenario.get("retention_faults", {}))
    return KVTransferConfig(**kv_transfer_config(host_bytes))


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
        scheduling_policy=scenario.get("scheduling_policy", "fcfs"),
        additional_config=scenario["additional_config"],
        kv_transfer_config=_kv_transfer_config(scenario),
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
    engine.add_request(
        call["id"], {"prompt_token_ids": call["prompt"]}, parameters, priority=call.get("priority", 0)
    )


def _play(engine: LLMEngine, scenario: dict[str, Any]) -> dict[str, Any]:
    """Add, abort and step as the scenario says, until nothing is left."""
    pending = sorted(scenario["calls"], key=lambda call: int(call["step"]))
    aborts = {int(step): ids for step, ids in scenario.get("aborts", {}).items()}
    outputs: dict[str, list[int]] = {}
    finished: list[str] = []
    cached: dict[str, int] = {}
    token_owners: list[str] = []
    half_written: list[dict[str, int]] = []
    step = 0
    _await_gateway(engine)
    while pending or engine.has_unfinished_requests():
        if step in scenario.get("pauses", ()):
            half_written.append(_pause(engine, outputs, finished))
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
                cached[output.request_id] = output.num_cached_tokens or 0
        step += 1
        if step > scenario.get("max_steps", 20_000):
            raise RuntimeError(f"no end after {step} steps; finished {len(finished)}")
    for _ in range(4):  # let pipelined steps drain
        engine.step()
    return {
        "outputs": outputs,
        "finished": finished,
        "cached": cached,
        "token_owners": token_owners,
        "steps": step,
        "half_written": half_written,
    }


def _await_gateway(engine: LLMEngine) -> None:
    """Wait until somebody listens, if the engine has a report address."""
    plugin = getattr(engine.engine_core.engine_core.scheduler, "plugin", None)
    while plugin is not None and plugin.tracker.reports is not None and not plugin.tracker.is_reporting:
        time.sleep(0.01)


def _pause(engine: LLMEngine, outputs: dict[str, list[int]], finished: list[str]) -> dict[str, int]:
    """Pause as `POST /pause?mode=wait` does, and resume; return the tokens of calls that it left."""
    scheduler = engine.engine_core.engine_core.scheduler
    scheduler.set_pause_state(PauseState.PAUSED_NEW)
    for _ in range(2_000):
        if not scheduler.has_requests():
            break
        for output in engine.step():
            outputs[output.request_id] = list(output.outputs[0].token_ids)
            if output.finished:
                finished.append(output.request_id)
    else:
        raise RuntimeError("the pause does not end")
    assert not scheduler.running
    left = {r.request_id: r.num_output_tokens for r in scheduler.requests.values() if r.num_output_tokens}
    scheduler.set_pause_state(PauseState.UNPAUSED)
    return left


def _report(scheduler: Any, free_before: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "scheduler": type(scheduler).__name__,
        "bases": [base.__name__ for base in type(scheduler).__mro__],
        "leaked_blocks": free_before - scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "requests_left": len(scheduler.requests) + len(scheduler.running) + len(scheduler.waiting),
    }
    plugin = getattr(scheduler, "plugin", None)
    if hasattr(scheduler, "is_degraded"):
        report["is_degraded"] = scheduler.is_degraded
    if plugin is not None:
        tracker = plugin.tracker
        tracker.machine.check()
        report |= {
            "calls_left": len(tracker),
            "slot_preemptions": plugin.decisions.slot_preemptions,
            "block_preemptions": plugin.decisions.block_preemptions,
            "programs_left": len(list(tracker.machine.table.programs())),
            "tenants_left": len(tracker.machine.shares._shares),
        }
    if scheduler.connector is not None:
        manager = scheduler.connector.manager
        report["is_host_degraded"] = manager._policy.is_degraded
        if not manager._policy.is_degraded:
            manager._policy.retention.check()
        report["swap"] = {".".join(key): value for key, value in manager.tally.items()}
        report["offload_totals"] = scheduler.connector.offload_totals()._asdict()
        report["swap_calls_left"] = len(manager._calls)
    return report


class _Said(logging.Handler):
    """Keeps what our part of the engine logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _run(scenario: dict[str, Any]) -> dict[str, Any]:
    said = _Said()
    logging.getLogger("vllm.autellix").addHandler(said)
    try:
        return _run_engine(scenario) | {"said": said.lines}
    finally:
        logging.getLogger("vllm.autellix").removeHandler(said)


def _make_engine_on(scenario: dict[str, Any]) -> LLMEngine:
    """Make the engine of a scenario on the release that it names, and without the module that it lacks."""
    version, missing = vllm.__version__, scenario.get("missing_module")
    ours = "autellix_backend.vllm_plugin.program_scheduler"
    known = {name: sys.modules[name] for name in (ours, missing) if name in sys.modules}
    vllm.__version__ = scenario.get("vllm_version", version)
    if missing is not None:
        # As a release in which it has another name: ours is imported again, and fails.
        del sys.modules[ours]
        delattr(vllm_plugin, "program_scheduler")
        sys.modules[missing] = None  # type: ignore[assignment]
    try:
        return _make_engine(scenario)
    finally:
        vllm.__version__ = version
        sys.modules.update(known)
        vars(vllm_plugin)["program_scheduler"] = sys.modules[ours]


def _run_engine(scenario: dict[str, Any]) -> dict[str, Any]:
    engine = _make_engine_on(scenario)
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
        watched = {} if getattr(scheduler, "plugin", None) is None else vars(_Watch(scheduler))
        played = _play(engine, scenario)
        report = _report(scheduler, free_before) | played | watched
        return report | {"preemptions": len(preempted), "released": getattr(scheduler, "released", [])}
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
            ours.add_request(item)
        # vLLM may add what is queued already, and remove what is not.
        if held:
            ours.add_request(generator.choice(held))
        ours.remove_request(_Item(0))
        assert len(ours) == len(theirs) == len(held) == len(list(ours))
        assert bool(ours) == bool(held)
    assert list(ours) == list(theirs)
    assert all(item in ours for item in held)
    return {"held": len(held)} | _hold_back(generator) | _move_groups(generator)


def _move_groups(generator: random.Random) -> dict[str, Any]:
    """Do random things to a queue of requests that move together, and count what a move takes."""
    bases = {group: generator.randrange(10) << 64 for group in range(6)}
    classes: dict[int, WorkClass | None] = {group: WorkClass("", group // 2) for group in bases}
    boosts: dict[WorkClass | None, int] = dict.fromkeys((None, *classes.values()), 0)
    groups: dict[_Item, int | None] = {}

    def rank_of(item: _Item) -> Rank:
        group = groups[item]
        if group is None:
            return Rank(item.priority << 64)
        return Rank(bases[group], item.priority, group, classes[group], boosts[classes[group]])

    queue = RankedRequestQueue((), lambda _: False, rank_of, boost_of=boosts.__getitem__)
    items: list[_Item] = []
    for number in range(3000):
        action = generator.choice(["add", "add", "pop", "remove", "move", "move group", "boost"])
        item = generator.choice(items) if items else None
        if action == "add" or item is None:
            item = _Item(generator.choice([number, generator.randrange(number + 1)]))
            groups[item] = generator.choice([None, *bases])
            items.append(item)
            queue.add_request(item)
        elif action == "pop":
            items.remove(queue.pop_request())
        elif action == "remove":
            items.remove(item)
            queue.remove_request(item)
        elif action == "move":
            groups[item] = generator.choice([None, *bases])
            queue.add_request(item)
        elif action == "boost":
            boosts[WorkClass("", generator.randrange(3))] = -generator.randrange(10) << 64
        else:
            group = generator.choice([*bases])
            bases[group] = generator.randrange(10) << 64
            classes[group] = generator.choice([None, *classes.values()])
            queue.move_group(group, bases[group], classes[group])
        expected = sorted(rank_of(item).number for item in items)
        assert [rank_of(item).number for item in queue] == expected
        assert not items or rank_of(queue.peek_request()).number == expected[0]
    # A queue that lets one go after another agrees with what it lists.
    listed = list(queue)
    assert [queue.pop_request() for _ in listed] == listed
    return {"group_work": [_group_work(size) for size in (20, 2000)]}


def _group_work(size: int) -> int:
    """Return the work of moving a group of this size, and of its first and its last request."""
    queue = RankedRequestQueue((), lambda _: False, lambda item: Rank(0, item.priority, "group"))
    items = [_Item(number) for number in range(size)]
    queue.prepend_requests(items)

    def move() -> None:
        queue.move_group("group", 1)
        queue.pop_request()
        queue.remove_request(items[-1])
        queue.add_request(items[0])
        queue.peek_request()

    return calls_made(move)


def _hold_back(generator: random.Random) -> dict[str, Any]:
    """Do random things to a queue that holds some requests back; vLLM must see the others alone."""
    held_back: set[_Item] = set()
    queue = RankedRequestQueue((), held_back.__contains__)
    items: list[_Item] = []
    for number in range(3000):
        action = generator.choice(["add", "add", "pop", "remove", "remove_several", "toggle"])
        if action == "add" or not items:
            item = _Item(generator.randrange(10**9) * 10_000 + number)
            items.append(item)
            if generator.random() < 0.5:
                held_back.add(item)
            queue.add_request(item)
        elif action == "pop" and queue:
            items.remove(queue.pop_request())
        elif action == "remove":
            queue.remove_request(items.pop(generator.randrange(len(items))))
        elif action == "remove_several":
            gone = [items.pop(generator.randrange(len(items))) for _ in range(min(2, len(items)))]
            queue.remove_requests([*gone, _Item(0)])
        else:
            item = generator.choice(items)
            held_back ^= {item}
            queue.add_request(item)
        visible = sorted(set(items) - held_back)
        assert bool(queue) == bool(visible)
        assert not visible or queue.peek_request() is visible[0]
        assert len(queue) == len(items) == len(list(queue))
    assert all(item in queue for item in items)
    assert list(queue) == [*visible, *sorted(set(items) & held_back)]
    held_back.clear()
    queue.release(lambda _: Rank(0), items)
    assert list(queue) == items
    # As in vLLM's own queue, the last request that was preempted goes first, and a new one last.
    queue.add_request(new := _Item(0))
    queue.prepend_requests([before := _Item(0), first := _Item(0)])
    expected = [first, before, *items, new]
    assert [queue.pop_request() for _ in expected] == expected
    return {"left": len(items)}


def _compare_swaps(seed: int) -> dict[str, Any]:
    """Store random blocks of random caches, spoil them, load them back, and compare every byte."""
    generator = random.Random(seed)
    tensors, per_chunk = _random_cache(generator), generator.choice([1, 2, 3])
    pages = [tensor.shape[1] for tensor in tensors]
    groups = [[0, 1], [2]] if generator.random() < 0.5 else [[0, 1, 2]]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, page) for tensor, page in zip(tensors, pages, strict=True)],
        [[CanonicalKVCacheRef(index, pages[index]) for index in group] for group in groups],
    )
    worker = SwapWorker(caches, swapper=open_swapper(), chunks=16, blocks_per_chunk=per_chunk)
    blocks = tensors[0].shape[0]
    before = [tensor.clone() for tensor in tensors]
    chunks = generator.sample(range(16), 2 * len(groups))
    # Whole chunks are stored; loads begin and end within one.
    out = [generator.sample(range(blocks), 2 * per_chunk) for _ in groups]
    skipped = generator.randrange(per_chunk)
    size = 2 * per_chunk - skipped - generator.randrange(per_chunk)
    back = [generator.sample(range(blocks), size) for _ in groups]
    worker.submit_store(1, _blocks(out, [0] * len(groups)), CPULoadStoreSpec(chunks))
    worker.wait({1})
    for tensor in tensors:
        tensor.fill_(7)
    worker.submit_load(2, CPULoadStoreSpec(chunks), _blocks(back, [skipped] * len(groups)))
    worker.wait({2})
    assert [result.job_id for result in worker.get_finished()] == [1, 2]
    moved = 0
    for group, stored, loaded in zip(groups, out, back, strict=True):
        for index in group:
            expected = torch.full_like(tensors[index], 7)
            for place, block in enumerate(loaded):
                expected[block] = before[index][stored[skipped + place]]
                moved += pages[index]
            assert torch.equal(expected, tensors[index]), (seed, index)
    report = worker.take_report()
    assert report.counts["bytes", "load"] == moved
    assert not worker.take_failed_loads()
    worker.shutdown()
    worker.shutdown()
    return {"moved": moved}


def _random_cache(generator: random.Random) -> list[Any]:
    """Three layers, each in memory of its own or all side by side in each block."""
    blocks, pages = generator.randrange(8, 20), [8 * generator.randrange(1, 40) for _ in range(3)]
    if generator.random() < 0.5:
        return [torch.randint(-128, 127, (blocks, page), dtype=torch.int8) for page in pages]
    whole = torch.randint(-128, 127, (blocks, sum(pages)), dtype=torch.int8)
    return list(whole.split(pages, dim=1))


def _blocks(lists: list[list[int]], first_blocks: list[int]) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(
        [block for blocks in lists for block in blocks],
        group_sizes=[len(blocks) for blocks in lists],
        block_indices=first_blocks,
    )


def _build_model(directory: Path) -> None:
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


def _run_agents(message: dict[str, Any]) -> dict[str, Any]:
    """Run agents with vLLM's own API and the client, which the other scenarios do without."""
    from tests.vllm_plugin import offline_agents

    return offline_agents.run(message["agents"], Path(message["seen"]), is_async=message["is_async"])


def main() -> None:
    """Serve scenarios until standard input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w")
    model = Path(sys.argv[2])
    if not (model / "config.json").exists():
        _build_model(model)
    for line in sys.stdin:
        try:
            message = json.loads(line)
            if "compare_queues" in message:
                reply = _compare_queues(message["compare_queues"])
            elif "compare_swaps" in message:
                reply = _compare_swaps(message["compare_swaps"])
            elif "agents" in message:
                reply = _run_agents(message)
            else:
                reply = _run(message | {"model": str(model)})
        except Exception:  # noqa: BLE001 -- process boundary: the test reads the error
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
