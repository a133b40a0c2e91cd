"""Measure what our scheduler adds to vLLM's own, step by step beside it.

Builds vLLM's scheduler objects without a model, keeps a number of calls running and waiting, and steps all
arms in turn in one thread, on a clock of their own with 20 ms a step. Counted are `add_request`, `schedule`
and `update_from_output` as a whole, arrivals, ends and snapshots included, by the CPU time of the thread: so
other work on the machine slows all arms alike. Judged is the difference to stock as a share of what stock's
own `schedule` and `update_from_output` take, and the 99th percentile of a step beside its mean.

    python benchmarks/scheduler_cost.py                          # the scenes and limits below
    python benchmarks/scheduler_cost.py --scene 64+0 --arms boost:auto fcfs:none --parts
    python benchmarks/scheduler_cost.py --before CHECKOUT        # the scheduler of another checkout beside it
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

# vLLM reads these when it is imported.
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import torch
import zmq
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from autellix_lab.demo.model import build_demo_model

STEP_S = 0.02
BLOCK_TOKENS = 16
WARM_UP_STEPS = 100
PROMPTS, OUTPUTS = (256, 512), range(16, 134)
"""Tokens of a program's first prompt, and of an answer."""
CALLS_OF_PROGRAM = 8
CALL_TOKENS = 32
"""New tokens in the prompt of each further call of a program."""
PROGRAM = "autellix_backend.vllm_plugin.program_scheduler"
STOCK = "stock"
SCENES = ("1+0", "8+0", "16+0", "64+0", "256+0", "16+112", "64+1000")
ARMS = ("boost:auto", "boost:none", "fcfs:none")
LIMITS = {
    ("64+0", "boost:auto"): 0.15,
    ("16+112", "boost:auto"): 0.35,
    ("64+1000", "boost:auto"): 0.5,
    ("64+0", "fcfs:none"): 0.05,
}
"""The most that an arm may add, as a share of stock's `schedule` and `update_from_output`."""
MAX_BURST = 3.0
"""The 99th percentile of a step over its mean."""
PARTS = (
    "make_room",
    "decisions.decide",
    "on_scheduled",
    "charge",
    "report",
    "close",
    "arrive",
    "tracker.machine.arrive",
    "tracker.machine.finish",
    "tracker.machine.review",
    "tracker.machine.tick",
    "tracker.machine.admission.review",
)
"""Methods of the plugin that `--parts` times."""


def programs_of(checkout: Path) -> ModuleType:
    """Return our scheduler's module as another checkout has it, beside the one that is imported."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("autellix")}
    paths = [str(checkout / folder) for folder in ("backend", "sdk")]
    sys.path[:0] = paths
    try:
        return importlib.import_module(PROGRAM)
    finally:
        del sys.path[: len(paths)]
        for name in [name for name in sys.modules if name.startswith("autellix")]:
            del sys.modules[name]
        sys.modules.update(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """How many calls run, and how many wait."""

    running: int
    waiting: int

    @classmethod
    def of(cls, text: str) -> Scene:
        """Read a scene as `64+1000`."""
        running, waiting = map(int, text.split("+"))
        return cls(running=running, waiting=waiting)

    @property
    def name(self) -> str:
        """The scene as one word."""
        return f"{self.running}+{self.waiting}"


@dataclass(slots=True)
class Samples:
    """CPU seconds of each step of one arm."""

    added: list[float] = field(default_factory=list)
    scheduled: list[float] = field(default_factory=list)
    updated: list[float] = field(default_factory=list)

    def steps(self) -> list[float]:
        """Return the seconds of `schedule` and `update_from_output`."""
        return [sum(pair) for pair in zip(self.scheduled, self.updated, strict=True)]

    def whole(self) -> list[float]:
        """Return the seconds of each step with its arrivals."""
        return [sum(each) for each in zip(self.added, self.scheduled, self.updated, strict=True)]


class Arm:
    """One scheduler with its calls, which are the same in all arms."""

    def __init__(self, name: str, scheduler: Any, receiver: Any, scene: Scene) -> None:
        self.name = name
        self.scheduler = scheduler
        self.plugin = getattr(scheduler, "plugin", None)
        self.samples = Samples()
        self.parts: defaultdict[str, float] = defaultdict(float)
        self.wakes = 0
        self._receiver = receiver
        self._target = scene.running + scene.waiting
        self._random = random.Random(1)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, get_hash_fn_by_name("sha256"))
        self._programs: dict[int, tuple[str, int, list[int]]] = {}
        self._count = 0
        self._now = 0.0
        if self.plugin is not None:
            scheduler.clock = lambda: self._now

    def time_parts(self) -> None:
        """Time the plugin's methods from now on."""
        for path in PARTS if self.plugin is not None else ():
            *owners, name = path.split(".")
            owner = self.plugin
            for each in owners:
                owner = getattr(owner, each)
            with contextlib.suppress(AttributeError):
                setattr(owner, name, self._timed(path, getattr(owner, name)))

    def forget(self) -> None:
        """Drop what was measured so far."""
        self.samples = Samples()
        self.parts.clear()
        self.wakes = 0

    def step(self) -> None:
        """Add calls in the place of those that have ended, and play a step."""
        scheduler, samples, clock = self.scheduler, self.samples, time.thread_time
        requests = self._new_requests()
        began_s = clock()
        for request in requests:
            scheduler.add_request(request)
        added_s = clock()
        output = scheduler.schedule()
        scheduled_s = clock()
        ids = list(output.num_scheduled_tokens)
        results = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
            sampled_token_ids=[[] if scheduler.requests[each].is_prefill_chunk else [7] for each in ids],
        )
        self._now += STEP_S
        updating_s = clock()
        scheduler.update_from_output(output, results)
        updated_s = clock()
        samples.added.append(added_s - began_s)
        samples.scheduled.append(scheduled_s - added_s)
        samples.updated.append(updated_s - updating_s)
        if self._receiver is not None:
            with contextlib.suppress(zmq.Again):
                while True:
                    self._receiver.recv(zmq.NOBLOCK)

    def _new_requests(self) -> list[Request]:
        return [self._new_request() for _ in range(self._target - len(self.scheduler.requests))]

    def _new_request(self) -> Request:
        self._count += 1
        chance, place = self._random, self._random.randrange(self._target)
        name, calls, prompt = self._programs.get(place, ("", CALLS_OF_PROGRAM, []))
        if calls == CALLS_OF_PROGRAM:
            prompt = [chance.randrange(2000) for _ in range(chance.choice(PROMPTS))]
            name, calls = f"p{place}-{self._count}", 0
        calls += 1
        self._programs[place] = (name, calls, prompt)
        tokens = [*prompt, *(chance.randrange(2000) for _ in range(CALL_TOKENS * calls))]
        identity = {
            "autellix_program": name,
            "autellix_call": f"c{self._count}",
            "autellix_gateway": "g",
        }
        return Request(
            request_id=f"r{self._count}",
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(
                max_tokens=chance.choice(OUTPUTS),
                ignore_eos=True,
                extra_args=identity if self.plugin is not None else None,
            ),
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def _timed(self, path: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.parts[path] += time.thread_time() - began_s

        return timed


class Bench:
    """Builds the arms of one scene, and steps them in turn."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._folder = folder
        self._args = args
        self._model = build_demo_model(folder / "model")
        self._ours = importlib.import_module(PROGRAM)
        self._before = programs_of(Path(args.before).resolve()) if args.before else None

    def measure(self, scene: Scene) -> list[Arm]:
        """Play a scene, and return the arms with what they took; the first is stock."""
        names = [STOCK, *self._args.arms]
        if self._before is not None:
            names += [f"before/{name}" for name in self._args.arms]
        with zmq.Context() as context, self._arms(names, scene, context) as arms:
            for _ in range(WARM_UP_STEPS):
                for arm in arms:
                    arm.step()
            for arm in arms:
                arm.forget()
                if self._args.parts:
                    arm.time_parts()
            # As vLLM's engine core does.
            gc.collect()
            gc.freeze()
            for number in range(self._args.steps):
                first = number % len(arms)
                for arm in arms[first:] + arms[:first]:
                    self._step(arm)
            for arm in arms:
                if arm.plugin is not None and arm.scheduler.is_degraded:
                    raise RuntimeError(f"{arm.name}: the plugin failed: its times mean nothing")
            gc.unfreeze()
            return arms

    @staticmethod
    def _step(arm: Arm) -> None:
        write = os.eventfd_write

        def counted(number: int, value: int) -> None:
            arm.wakes += 1
            write(number, value)

        os.eventfd_write = counted  # type: ignore[assignment]
        try:
            arm.step()
        finally:
            os.eventfd_write = write

    @contextlib.contextmanager
    def _arms(self, names: Sequence[str], scene: Scene, context: Any) -> Iterator[list[Arm]]:
        with contextlib.ExitStack() as ends:
            arms = []
            for number, name in enumerate(names):
                kind = self._kind(name)
                section: dict[str, Any] = {}
                receiver = None
                if name != STOCK:
                    policy, admission = name.rpartition("/")[2].split(":")
                    section = {"scheduler": {"policy": policy, "admission": admission}}
                    if not self._args.no_reports:
                        address = section["report_address"] = f"ipc://{self._folder}/{scene.name}-{number}"
                        receiver = ends.enter_context(context.socket(zmq.SUB))
                        receiver.subscribe(b"")
                        receiver.connect(address)
                scheduler = self._scheduler(kind, section, scene)
                ends.callback(scheduler.shutdown)
                while receiver is not None and not scheduler.plugin.tracker.is_reporting:
                    time.sleep(0.01)
                arms.append(Arm(name, scheduler, receiver, scene))
            yield arms

    def _kind(self, name: str) -> Any:
        if name == STOCK:
            return Scheduler if self._args.sync else AsyncScheduler
        module: Any = self._before if name.startswith("before/") else self._ours
        return module.SyncProgramScheduler if self._args.sync else module.AsyncProgramScheduler

    def _scheduler(self, kind: Any, section: dict[str, Any], scene: Scene) -> Any:
        blocks = 120 * (scene.running + 64)
        config = EngineArgs(
            model=str(self._model),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=2048,
            block_size=BLOCK_TOKENS,
            max_num_seqs=scene.running,
            max_num_batched_tokens=8192,
            enable_prefix_caching=True,
            async_scheduling=not self._args.sync,
            additional_config={"autellix": section} if section else {},
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        return kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )


WIDTHS = (13, 13, 8, 8, 10, 7)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[int(0.99 * (len(values) - 1))]


def print_scene(scene: Scene, arms: Sequence[Arm], steps: int) -> list[str]:
    """Print what each arm took; return the limits that do not hold."""
    mean, failures = statistics.fmean, []
    stock = arms[0].samples
    own_s, added_s = mean(stock.steps()), mean(stock.added)
    print(
        f"\n{scene.name}: stock takes {1e6 * own_s:.0f} us a step, and {1e6 * added_s:.0f} us for add_request"
    )
    heads = ("in the step", "add_request", "share", "median", "p99/mean", "wakes")
    print(f"{'arm':<20}" + "".join(f"{head:>{width}}" for head, width in zip(heads, WIDTHS, strict=True)))
    for arm in arms:
        samples = arm.samples
        step_s, add_s = mean(samples.steps()) - own_s, mean(samples.added) - added_s
        share = (step_s + add_s) / own_s
        median = (statistics.median(samples.whole()) - statistics.median(stock.whole())) / own_s
        burst = p99(samples.whole()) / mean(samples.whole())
        cells = (
            f"{1e6 * step_s:+.0f}",
            f"{1e6 * add_s:+.0f}",
            f"{share:.2f}",
            f"{median:.2f}",
            f"{burst:.1f}",
            f"{arm.wakes / steps:.2f}",
        )
        print(
            f"{arm.name:<20}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
        )
        limit = LIMITS.get((scene.name, arm.name))
        if limit is not None and share > limit:
            failures.append(f"{scene.name} {arm.name}: {share:.2f} of stock, limit {limit}")
        if limit is not None and burst > MAX_BURST:
            failures.append(f"{scene.name} {arm.name}: p99 is {burst:.1f} times the mean, limit {MAX_BURST}")
        if arm.parts:
            print(
                "   ", ", ".join(f"{path} {1e6 * took_s / steps:.0f}" for path, took_s in arm.parts.items())
            )
    return failures


def main() -> int:
    """Measure the scenes; the exit status is 0 if all limits hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", nargs="+", default=SCENES, help="running+waiting calls")
    parser.add_argument("--arms", nargs="+", default=ARMS, help="policy:admission")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sync", action="store_true", help="schedulers for engines without async scheduling")
    parser.add_argument("--no-reports", action="store_true", help="without a gateway that gets reports")
    parser.add_argument("--parts", action="store_true", help="time the plugin's methods, too")
    parser.add_argument("--before", help="another checkout, whose scheduler is measured beside this one's")
    args = parser.parse_args()
    torch.set_num_threads(1)
    init_none_hash(get_hash_fn_by_name("sha256"))
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args)
        for text in args.scene:
            scene = Scene.of(text)
            failures += print_scene(scene, bench.measure(scene), args.steps)
    for failure in failures:
        print(f"beyond its limit: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
