"""Plays scripts on vLLM's real scheduler, its own and ours, and compares them.

    python -m tests.vllm_plugin.fuzz.play --seeds 1-60
    python -m tests.vllm_plugin.fuzz.play --seconds 3600

There is no model: the runner keeps what each KV slot holds and checks it before it is read. A script that
finds something is shrunk and printed. `--faults` has one of our methods raise once in each script.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_LOGGING_LEVEL="ERROR",
)

import torch
from tests.vllm_plugin.fuzz.checks import (
    check_books,
    check_end,
    check_record,
    lost_sessions,
    watch_order,
    watch_victims,
)
from tests.vllm_plugin.fuzz.faults import plant_fault
from tests.vllm_plugin.fuzz.model import KVRunner
from tests.vllm_plugin.fuzz.scripts import WINDOW, Event, Image, Script, make_script
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from autellix_backend.vllm_plugin.scheduler import AutellixScheduler
from autellix_backend.vllm_plugin.trial_runner import END, TOKENS, WrongKVError, answer

_MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": TOKENS,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
    "eos_token_id": END,
}
MOST_STEPS = 6000
MOST_IDLE_STEPS = 200
"""A script that takes more steps, or so many without tokens when nothing else happens, stands still."""
SHRINKING_S = 60.0
BOUND, SPARE_STEPS = 1.5, 20
"""The steps that a plain script may take, as a multiple of those of vLLM's own scheduler, and beyond."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a scheduler made of a script."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    """Those that had tokens, or had to wait for those of steps before.

    With two steps under way, calls that run together in every second step take as long as calls in turns.
    """
    preemptions: int = 0
    fault: str | None = None
    """The method that has raised on purpose."""
    has_failed: bool = False
    """Whether a request may have failed because of a load."""
    left: str = ""
    """What is left of the requests in the end."""


class Player:
    """One scheduler, to which the events of a script happen."""

    def __init__(self, script: Script, model: str, *, is_ours: bool, has_fault: bool = False) -> None:
        setup = self._setup = script.setup
        self._is_ours = is_ours
        self._withdraw_fault: Callable[[], None] = lambda: None
        self._generator = random.Random(script.seed)
        self._now = 0.0
        self.scheduler = _make_scheduler(script, model, is_ours=is_ours)
        self.outcome = Outcome()
        self._runner = KVRunner(setup)
        self._connectors: list[Any] = []
        if setup.loads:
            connector = self.scheduler.connector
            self._connectors = connector.sub_connectors if setup.connectors else [connector]
            for number, each in enumerate(self._connectors):
                each.set_up(setup, self._runner.host, number, script.seed)
        if is_ours:
            self.scheduler.clock = lambda: self._now
            if has_fault:
                plugin = self.scheduler.plugin
                self._withdraw_fault = plant_fault(plugin, random.Random(script.seed), self.outcome)
            else:
                watch_order(self.scheduler)
        watch_victims(self.scheduler, self.outcome)
        self._has_fault = has_fault
        self._hasher = get_request_block_hasher(setup.block_tokens, sha256) if setup.has_cache else None
        self._pool = self.scheduler.kv_cache_manager.block_pool
        self._free_blocks = self._pool.get_num_free_blocks()
        self._under_way: deque[tuple[Any, Any]] = deque()
        self._sessions: dict[str, dict[str, Any]] = {}

    def play(self, events: Iterable[Event]) -> Outcome:
        """Let the events happen, and step until no request is left."""
        left = deque(events)
        idle = 0
        for step in range(MOST_STEPS):
            while left and left[0].step <= step:
                event = left.popleft()
                names = {"request": event.request} if event.request else {}
                getattr(self, f"_{event.kind}")(**names, **(event.fields or {}))
            if self.scheduler.requests or self.scheduler.finished_req_ids or self._under_way:
                scheduled = self._step(step)
            elif not left:
                break
            else:
                scheduled = 0
                self._now += self._setup.step_s
            if not (left or scheduled or self._under_way):
                self._abort_sessions()
            idle = 0 if left or scheduled else idle + 1
            if idle > MOST_IDLE_STEPS:
                break
        if any(not request.is_finished() for request in self.scheduler.requests.values()):
            raise AssertionError(f"stands still with {self.scheduler.get_request_counts()}")
        self.outcome.has_failed = self._runner.has_failed and self._setup.failures == "fail"
        # The checks call methods, too.
        self._withdraw_fault()
        self.outcome.left = check_end(self.scheduler, self._pool.get_num_free_blocks() - self._free_blocks)
        return self.outcome

    def _step(self, step: int) -> int:
        scheduler, setup = self.scheduler, self._setup
        is_throttled = setup.throttles and step % 4 != 0
        for connector in self._connectors:
            # In its own order vLLM loads after a reset.
            connector.is_strict = (
                self._is_ours and scheduler.plugin.is_in_charge and not scheduler.is_degraded
            )
        output = scheduler.schedule(True) if is_throttled else scheduler.schedule()
        scheduled: int = output.total_num_scheduled_tokens
        self.outcome.steps += bool(scheduled or self._under_way)
        self._under_way.append((output, self._runner.execute(output)))
        self._now += setup.step_s * (0.5 + self._generator.random() if scheduled else 1.0)
        depth = {"sync": 1, "v2-pipelined": 3}.get(setup.mode, 2)
        while self._under_way and (len(self._under_way) >= depth or not scheduled):
            self._update()
        if self._is_ours and not self._has_fault:
            check_books(scheduler)
        return scheduled

    def _update(self) -> None:
        output, results = self._under_way.popleft()
        for outputs in self.scheduler.update_from_output(output, results).values():
            self._take(outputs.outputs)
        if self._setup.drafts and output.total_num_scheduled_tokens:
            self.scheduler.update_draft_token_ids(self._runner.draft(self._generator))

    def _take(self, outputs: Iterable[Any]) -> None:
        for each in outputs:
            self.outcome.outputs.setdefault(each.request_id, []).extend(each.new_token_ids)
            if each.finish_reason is not None:
                self.outcome.ends[each.request_id] = str(each.finish_reason)

    # Events.

    def _add(self, request: str, *, is_session: bool, **fields: Any) -> None:
        if is_session:
            self._sessions[request] = fields
        self.scheduler.add_request(self._make_request(request, is_session=is_session, **fields))

    def _part(self, request: str, tokens: list[int], output: int) -> None:
        if request in self._sessions and request in self.scheduler.requests:
            fields = self._sessions[request] | {"prompt": tokens, "output": output, "ignores_end": True}
            self.scheduler.add_request(self._make_request(request, is_session=True, **fields))

    def _end(self, request: str) -> None:
        fields = self._sessions.pop(request, None)
        if fields is not None and request in self.scheduler.requests:
            self.scheduler.add_request(self._make_request(request, is_session=False, **fields))

    def _abort(self, request: str) -> None:
        self._sessions.pop(request, None)
        self.scheduler.finish_requests([request], RequestStatus.FINISHED_ABORTED)

    def _abort_all(self) -> None:
        self._sessions.clear()
        self.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)

    def _abort_sessions(self) -> None:
        waiting = [
            name
            for name, request in self.scheduler.requests.items()
            if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
        ]
        waiting += [request.request_id for request in lost_sessions(self.scheduler)]
        if waiting:
            self.scheduler.finish_requests(waiting, RequestStatus.FINISHED_ABORTED)

    def _reset(self, *, running: bool) -> bool:
        try:
            return bool(self.scheduler.reset_prefix_cache(reset_running_requests=running))
        except RuntimeError:
            # Sessions and loads hold blocks without a slot.
            requests = self.scheduler.requests.values()
            assert self._setup.loads or any(each.num_computed_tokens for each in requests)
            return False

    def _sleep(self, *, ends_calls: bool) -> None:
        """Do what vLLM's engine core does to sleep: pause, end the steps under way, and drop the memory."""
        if ends_calls:
            self._abort_all()
        self._pause("PAUSED_NEW" if ends_calls else "PAUSED_ALL")
        while self._under_way:
            self._update()
        if self._reset(running=True):
            self.scheduler.reset_encoder_cache()
            self._runner.lose_memory()

    def _pause(self, how: str) -> None:
        self.scheduler.set_pause_state(PauseState[how])

    def _make_request(
        self,
        name: str,
        *,
        prompt: list[int],
        output: int,
        ignores_end: bool,
        arguments: dict[str, Any],
        priority: int,
        adapter: int,
        is_session: bool,
        images: Sequence[Image] = (),
    ) -> Request:
        parameters = SamplingParams(
            temperature=0.0, max_tokens=output, ignore_eos=ignores_end, extra_args=dict(arguments) or None
        )
        parameters.update_from_generation_config({}, END)
        return Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=parameters,
            pooling_params=None,
            block_hasher=self._hasher,
            mm_features=[
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=f"image {image.number}",
                    mm_position=PlaceholderRange(offset=image.offset, length=image.length),
                )
                for image in images
            ],
            priority=priority,
            resumable=is_session,
            arrival_time=self._now,
            lora_request=LoRARequest(f"adapter-{adapter}", adapter, "adapter") if adapter else None,
        )


def _make_scheduler(script: Script, model: str, *, is_ours: bool) -> Any:
    setup = script.setup
    options: dict[str, Any] = {}
    if setup.has_priorities:
        options["scheduling_policy"] = "priority"
    if setup.drafts:
        options["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": setup.drafts,
            "prompt_lookup_max": 3,
        }
    if setup.adapters:
        options |= {"enable_lora": True, "max_loras": setup.adapters}
    if setup.loads:
        connector: dict[str, Any] = {
            "kv_connector": "HostConnector",
            "kv_connector_module_path": "tests.vllm_plugin.fuzz.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": setup.failures or "fail",
        }
        if setup.connectors:
            connector = {
                "kv_connector": "MultiConnector",
                "kv_connector_extra_config": {"connectors": [connector] * setup.connectors},
                **{name: connector[name] for name in ("kv_role", "kv_load_failure_policy")},
            }
        options["kv_transfer_config"] = KVTransferConfig(**connector)
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=setup.max_tokens,
        block_size=setup.block_tokens,
        max_num_seqs=setup.slots,
        max_num_batched_tokens=max(setup.budget, setup.slots),
        long_prefill_token_threshold=setup.long_prefill,
        enable_chunked_prefill=setup.is_chunked,
        enable_prefix_caching=setup.has_cache,
        additional_config={"autellix": {"scheduler": setup.scheduler, "record_dir": f"{model}/records"}},
        **options,
    ).create_engine_config()
    # The CPU platform turns it off.
    config.scheduler_config.async_scheduling = setup.mode in ("async", "v2", "v2-pipelined")
    config.cache_config.num_gpu_blocks = setup.blocks + 1
    shape: dict[str, Any] = {
        "block_size": setup.block_tokens,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
    }
    specs: dict[str, Callable[[], KVCacheSpec]] = {
        "full": lambda: FullAttentionSpec(**shape),
        "window": lambda: SlidingWindowSpec(sliding_window=WINDOW, **shape),
        "local": lambda: ChunkedLocalAttentionSpec(attention_chunk_size=WINDOW, **shape),
    }
    scheduler = (AutellixScheduler if is_ours else config.scheduler_config.get_scheduler_cls())(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=setup.blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([kind], specs[kind]()) for kind in setup.layers],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=setup.block_tokens,
    )
    if setup.mode.startswith("v2"):
        scheduler.use_v2_model_runner = True
    if setup.mode.endswith("pipelined"):
        scheduler.use_pp = True
        scheduler.max_num_active_reqs = scheduler.max_num_running_reqs
    if setup.mode == "v2-pipelined":
        scheduler.decode_stagger = scheduler.pp_size = 2
    if setup.encoder:
        scheduler.max_num_encoder_input_tokens = setup.encoder
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=setup.encoder)
    return scheduler


def examine(script: Script, model: str, *, has_fault: bool = False) -> tuple[str | None, Outcome, Outcome]:
    """Play a script on both schedulers; return what is wrong with ours, and what both made of it.

    Raises:
        Exception: vLLM's own scheduler fails.
    """
    stock = Player(script, model, is_ours=False).play(script.events)
    player = Player(script, model, is_ours=True, has_fault=has_fault)
    try:
        player.play(script.events)
        if not has_fault:
            check_record(player.scheduler)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        if "len(scheduled_loras)" in str(place.line):
            # vLLM 0.32 forgets the adapters of running requests that it leaves out of a step.
            raise
        if isinstance(error, WrongKVError) and script.setup.has_priorities and player.outcome.fault:
            # Under its priority policy, to which a fault returns it, vLLM may preempt a request that it has
            # scheduled in the same step (vLLM issue 57580).
            raise
        raised = f"{type(error).__name__}: {error} at {place.filename}:{place.lineno}"
        return f"{raised} ({player.outcome.fault})", stock, player.outcome
    is_blind = player.outcome.fault is not None and not player.scheduler.is_degraded
    found = "the fault was swallowed" if is_blind else _compare(script, stock, player.outcome)
    return found, stock, player.outcome


def _compare(script: Script, stock: Outcome, ours: Outcome) -> str | None:
    """Return what is wrong with our outcome beside vLLM's own."""
    if ours.left and not stock.left:
        return f"left: {ours.left}"
    aborted = {event.request for event in script.events if event.kind == "abort"}
    is_cut = any(
        event.kind == "abort_all" or (event.kind == "sleep" and event.fields["ends_calls"])
        for event in script.events
    )
    for event in script.events:
        if event.kind != "add" or event.fields["is_session"]:
            continue
        fields, name = event.fields, event.request
        expected = answer(
            fields["prompt"],
            fields["output"],
            ignores_end=fields["ignores_end"],
            adapter=fields["adapter"],
        )
        output = ours.outputs.get(name, [])
        is_whole = not (is_cut or name in aborted or (ours.has_failed and ours.ends.get(name) == "error"))
        if output != (expected if is_whole else expected[: len(output)]):
            return f"{name} has another answer"
        if is_whole and ours.ends.get(name) != stock.ends.get(name) and not stock.has_failed:
            return f"{name} ends otherwise"
    bound = max(BOUND, script.setup.lora_bound)
    if script.is_plain and ours.fault is None and ours.steps > bound * stock.steps + SPARE_STEPS:
        return f"{ours.steps} steps, and {stock.steps} of vLLM's own"
    return None


def shrink(script: Script, is_bad: Callable[[Script], bool]) -> Script:
    """Drop events, first many at once, while the script stays bad, for a minute at most."""
    end, count = time.monotonic() + SHRINKING_S, len(script.events) // 2
    while count:
        place = 0
        while place < len(script.events) and time.monotonic() < end:
            less = script.without(place, count)
            if is_bad(less):
                script = less
            else:
                place += count
        count //= 2
    return script


def _is_bad(model: str, *, has_fault: bool) -> Callable[[Script], bool]:
    def is_bad(script: Script) -> bool:
        try:
            return examine(script, model, has_fault=has_fault)[0] is not None
        except Exception:  # noqa: BLE001 -- not our fault
            return False

    return is_bad


def _show(script: Script, found: str) -> None:
    lines = [f"seed {script.seed}: {found}", json.dumps(asdict(script.setup))]
    lines += [f"    {' '.join(map(str, event))}" for event in script.events]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def main() -> int:
    """Play scripts; return 1 if any finds something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="", help="such as 1-60; by default from the time on")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--mode", choices=["sync", "async", "pipelined", "v2", "v2-pipelined"])
    parser.add_argument("--faults", action="store_true", help="one of our methods raises once")
    parser.add_argument("--keep", action="store_true", help="do not shrink what is printed")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1) if first else range(time.time_ns() // 1000, sys.maxsize)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    init_none_hash(sha256)
    end = time.monotonic() + options.seconds
    tally = {"scripts": 0, "findings": 0, "upstream": 0, "preemptions": 0, "plain": 0, "faults": 0}
    worst = 0.0
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(_MODEL_CONFIG))
        for seed in seeds:
            if time.monotonic() > end:
                break
            script = make_script(seed, options.mode)
            tally["scripts"] += 1
            try:
                found, stock, ours = examine(script, model, has_fault=options.faults)
            except Exception:  # noqa: BLE001 -- vLLM's own faults are not what is looked for
                tally["upstream"] += 1
                continue
            tally["preemptions"] += ours.preemptions
            tally["faults"] += ours.fault is not None
            if script.is_plain and stock.steps:
                tally["plain"] += 1
                worst = max(worst, ours.steps / stock.steps)
            if found is not None:
                tally["findings"] += 1
                if not options.keep:
                    script = shrink(script, _is_bad(model, has_fault=options.faults))
                _show(script, found)
    report = tally | {"first": seeds.start, "most_steps": round(worst, 3)}
    sys.stdout.write(f"{json.dumps(report)}\n")
    return int(tally["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
