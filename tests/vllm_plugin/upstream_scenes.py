"""A process that plays scenes on the scheduler of a patched vLLM; `test_upstream.py` has their meaning.

Reads a JSON list of scenes from standard input, and prints the list of what they return as the last line.
"""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.vllm_plugin import scheduler_scenes
from tests.vllm_plugin.scheduler_scenes import Engine
from vllm import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import PriorityRequestQueue, RequestQueue
from vllm.v1.request import Request, RequestStatus

from autellix_backend.vllm_plugin import trial
from autellix_backend.vllm_plugin.trial_runner import TrialRunner, answer

MAX_CONTEXT_TOKENS = 1 << 17


class Checked:
    """A stock scheduler whose steps are executed by a runner that checks the KV cache."""

    def __init__(self, *, is_async: bool, **options: Any) -> None:
        self.engine = Engine(None, is_async=is_async, **options)
        self.scheduler = self.engine.scheduler
        self._runner = TrialRunner(scheduler_scenes.BLOCK_TOKENS)
        self._under_way: deque[tuple[Any, Any]] = deque()
        self._is_async = is_async
        self.answers: dict[str, list[int]] = {}
        self.expected: dict[str, list[int]] = {}
        self.first: list[str] = []
        """Requests in the order of their first steps."""

    def add(self, name: str, prompt_tokens: int, answer_tokens: int, priority: int = 0) -> Request:
        """Queue a request."""
        prompt = trial._prompt(name[:1], prompt_tokens)
        self.answers[name], self.expected[name] = [], answer(prompt, answer_tokens, ignores_end=True)
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=answer_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=trial._hash_blocks,
            priority=priority,
            # At once, however long it takes to make them.
            arrival_time=len(self.answers) * 1e-6,
        )
        self.scheduler.add_request(request)
        return request

    def step(self) -> None:
        """Schedule a step, and execute one."""
        output = self.scheduler.schedule()
        self.first += [name for name in output.num_scheduled_tokens if name not in self.first]
        self._under_way.append((output, self._runner.execute(output)))
        while len(self._under_way) > (1 if self._is_async and output.num_scheduled_tokens else 0):
            for client in self.scheduler.update_from_output(*self._under_way.popleft()).values():
                for each in client.outputs:
                    self.answers[each.request_id] += each.new_token_ids

    def finish(self, most_steps: int = 1000) -> None:
        """Step to the end of all requests, and check their answers."""
        for _ in range(most_steps):
            if not self.scheduler.requests and not self._under_way:
                break
            self.step()
        assert not self.scheduler.requests, f"{sorted(self.scheduler.requests)} have not ended"
        wrong = [name for name, answer in self.answers.items() if answer != self.expected[name]]
        assert not wrong, f"wrong answers of {wrong}"
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "blocks are still held"


class AdmittingScheduler(AsyncScheduler):
    """Orders requests by priority, and holds some back."""

    admitted: set[str] = set()

    def create_request_queue(self) -> RequestQueue:
        return PriorityRequestQueue()

    def is_admitted(self, request: Request) -> bool:
        return request.request_id in self.admitted


def queues(*, is_stock: bool) -> dict[str, Any]:
    """Hold requests back, with a queue of a subclass; or none, with vLLM's own."""
    if is_stock:
        stock = Checked(is_async=False, slots=1)
        for name, tokens in (("a", 30), ("b", 20), ("c", 40)):
            stock.add(name, tokens, 3)
        stock.finish()
        return {"first": stock.first}
    AdmittingScheduler.admitted = {"a", "b", "c"}
    engine = Checked(is_async=True, slots=1, scheduler_cls=AdmittingScheduler)
    scheduler = engine.scheduler
    for priority, name in enumerate("dcba"):
        engine.add(name, 20, 3, priority)
    gone = engine.add("e", 20, 3, -1)
    held = [request.request_id for request in scheduler.deferred_waiting]
    assert gone.status == RequestStatus.WAITING_FOR_ADMISSION
    for _ in range(20):
        engine.step()
    seen = list(engine.first)
    stats = scheduler.make_stats()
    scheduler.finish_requests("e", RequestStatus.FINISHED_ABORTED)
    del engine.answers["e"]
    AdmittingScheduler.admitted = {"d"}
    engine.finish()
    return {
        "held": sorted(held),
        "seen": seen,
        "waiting": [stats.num_waiting_reqs, stats.num_skipped_waiting_reqs],
        "then": engine.first[len(seen) :],
        "deferred": len(scheduler.deferred_waiting),
    }


def preemptions(*, is_async: bool, seed: int) -> dict[str, Any]:
    """Preempt running requests at random by the public method."""
    engine = Checked(is_async=is_async, slots=3, blocks=60, max_num_batched_tokens=48)
    scheduler, generator = engine.scheduler, random.Random(seed)
    refused = [scheduler.preempt("nobody")]
    names = deque("abcdefgh")
    count = step = 0
    while scheduler.requests or names:
        if names and step % 4 == 0:
            name = names.popleft()
            engine.add(name, generator.randrange(20, 90), generator.randrange(5, 30))
            refused.append(scheduler.preempt(name))
        if scheduler.running and step % 3 == 0:
            victim = generator.choice(scheduler.running)
            assert scheduler.preempt(victim.request_id)
            assert victim.status == RequestStatus.PREEMPTED and victim not in scheduler.running
            count += 1
        engine.step()
        step += 1
        assert step < 3000
    engine.finish()
    return {"preempted": count, "refused": refused}


class _Log:
    """An observer that notes what happens, and one that fails."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_added(self, request: Any) -> None:
        self.seen.append(f"added {request.request_id}")

    def on_scheduled(self, output: Any) -> None:
        self.seen.append(f"scheduled {output.total_num_scheduled_tokens}")

    def on_executed(self, output: Any, result: Any) -> None:
        self.seen.append(f"executed {len(result.req_ids)}")

    def on_preempted(self, request: Any) -> None:
        self.seen.append(f"preempted {request.request_id}")

    def on_finished(self, request: Any) -> None:
        self.seen.append(f"finished {request.request_id} {request.status}")


def observers() -> dict[str, Any]:
    """Watch two requests, of which one is aborted, beside an observer that fails."""
    engine = Checked(is_async=False, slots=2, blocks=40)
    log, failing = _Log(), _Log()

    def fail(output: Any) -> None:
        raise RuntimeError("deliberate")

    failing.on_scheduled = fail  # type: ignore[method-assign]
    for observer in (failing, log):
        engine.scheduler.add_observer(observer)
    engine.add("a", 20, 2)
    engine.add("b", 20, 9)
    engine.step()
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.step()
    engine.scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
    del engine.answers["b"]
    engine.finish()
    return {"seen": log.seen, "failing": failing.seen}


def checked_order(*, is_async: bool) -> dict[str, Any]:
    """Let short prompts pass long ones, of a few blocks, with the KV cache checked."""
    engine = Checked(
        is_async=is_async, slots=3, blocks=40, max_num_batched_tokens=48, scheduling_policy="short_prefill"
    )
    for name, tokens in (("a", 400), ("b", 390), ("c", 20), ("d", 25), ("e", 60)):
        engine.add(name, tokens, 4)
    engine.finish()
    return {"first": engine.first}


def turns_beside_long_prefills(*, seed: int, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    """Let sessions take turns, whose prefixes are cached, beside long cold prompts.

    Returns the times to first tokens. A step takes 20 ms and 0.1 ms for each token of a prefill, of which
    8,192 fit into it by default.
    """
    scheduler_scenes.MAX_CONTEXT_TOKENS = MAX_CONTEXT_TOKENS
    costs: dict[str, Any] = {"step_s": 0.02, "prefill_s": 0.0001}
    engine = Engine(None, blocks=60_000, slots=64, **costs, **options)
    generator = random.Random(seed)
    arrivals: list[tuple[float, str, list[int]]] = []
    at = 0.0
    while (at := at + generator.expovariate(1 / 12)) < seconds:
        arrivals.append((at, f"long-{len(arrivals)}", engine.tokens(generator.randrange(40_000, 100_000))))
    for session in range(12):
        prompt = engine.tokens(generator.randrange(4_000, 16_000))
        arrivals.append((generator.uniform(0, 20), f"turn-{session}-0", prompt))
    arrivals.sort()
    open_requests: dict[str, Request] = {}
    arrived, first = {}, {}
    while arrivals or open_requests:
        if not open_requests:
            engine.now = max(engine.now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= engine.now:
            when, name, prompt = arrivals.pop(0)
            arrived[name] = when
            open_requests[name] = engine.add(name, prompt, generator.randrange(50, 150), arrival_time=when)
        engine.step()
        for name, request in list(open_requests.items()):
            if request.num_output_tokens and name not in first:
                first[name] = engine.now - arrived[name]
            if not request.is_finished():
                continue
            del open_requests[name]
            kind, number, *turn = name.split("-")
            then = engine.now + generator.expovariate(1 / 5)
            if kind == "turn" and then < seconds and request.num_tokens < 60_000:
                prompt = [*request.all_token_ids, *engine.tokens(generator.randrange(200, 1_000))]
                arrivals.append((then, f"turn-{number}-{int(turn[0]) + 1}", prompt))
                arrivals.sort()
    # The first turn of a session is a cold prompt too.
    turns = [time for name, time in first.items() if name.startswith("turn") and not name.endswith("-0")]
    long = [time for name, time in first.items() if name.startswith("long")]
    return {
        "turns": [float(np.mean(turns)), float(np.percentile(turns, 95)), max(turns)],
        "long": [float(np.mean(long)), float(np.percentile(long, 95)), max(long)],
        "counts": [len(turns), len(long)],
    }


SCENES: tuple[Callable[..., dict[str, Any]], ...] = (
    queues,
    preemptions,
    observers,
    checked_order,
    turns_beside_long_prefills,
)


def main() -> None:
    """Play the scenes that standard input names."""
    model = Path(sys.argv[2])
    config = scheduler_scenes._MODEL_CONFIG | {"max_position_embeddings": MAX_CONTEXT_TOKENS}
    (model / "config.json").write_text(json.dumps(config))
    by_name = {scene.__name__: scene for scene in SCENES}
    results = [by_name[scene.pop("scene")](**scene) for scene in json.load(sys.stdin)]
    sys.stdout.write(f"{json.dumps(results)}\n")


if __name__ == "__main__":
    main()
