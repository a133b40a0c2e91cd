"""A process that plays programs on vLLM's real scheduler with our class, and a script in place of the model.

Time is virtual: a step takes what an EngineModel says, and every scheduled call whose context is complete
gets one token. Reads one JSON scenario per line from standard input and answers with one JSON line on the
given descriptor: the decisions that the scheduler's machine made, in the words of the simulator's log.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import math
import os
import random
import sys
import traceback
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
from tests.vllm_plugin.scripted_transfers import ScriptedTransfers, transfer_config
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.call import CallRecord
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.core.table import ProcessTable
from autellix_backend.settings.scheduler import scheduler_from_mapping
from autellix_backend.vllm_plugin.program_scheduler import AsyncProgramScheduler, SyncProgramScheduler
from autellix_lab.sim.engine import LEAST_WAIT_S
from autellix_lab.sim.model import EngineModel, attended_pairs
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.trace import CallTrace, ProgramTrace
from autellix_lab.workload.trace_files import program_from_mapping

VOCABULARY = 1 << 20
MAX_CONTEXT_TOKENS = 1 << 18
PLENTY_OF_BLOCKS = 1 << 14
# As much of a model as vLLM's configuration asks for; it is never loaded.
_MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_CONTEXT_TOKENS,
    "torch_dtype": "float32",
}


ProgramScheduler = AsyncProgramScheduler | SyncProgramScheduler


def make_scheduler(
    scheduler_class: type[Any],
    directory: Path,
    model: EngineModel,
    additional_config: dict[str, Any],
    *,
    is_async: bool,
    long_prefill_tokens: int = 0,
) -> Any:
    """Build a scheduler of an engine like `model`, as the engine core does.

    Where the model has host memory, it comes with our connector. `long_prefill_tokens` is vLLM's own cap of a
    prefill in a step; 0 is none.
    """
    spec = FullAttentionSpec(block_size=model.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
    offload = None
    if model.resume == "host":
        offload = KVTransferConfig(**transfer_config(model, spec.page_size_bytes))
    config = EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=MAX_CONTEXT_TOKENS,
        block_size=model.block_tokens,
        max_num_seqs=model.max_num_seqs,
        max_num_batched_tokens=model.token_budget,
        long_prefill_token_threshold=long_prefill_tokens,
        enable_prefix_caching=model.has_prefix_cache,
        async_scheduling=is_async,
        additional_config=additional_config,
        kv_transfer_config=offload,
    ).create_engine_config()
    # One block is vLLM's null block, which no call gets.
    blocks = 1 + (PLENTY_OF_BLOCKS if model.kv_blocks is None else model.kv_blocks)
    config.cache_config.num_gpu_blocks = blocks
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=model.block_tokens,
    )


def write_model_config(directory: Path) -> None:
    """Write what `make_scheduler` reads of a model."""
    (directory / "config.json").write_text(json.dumps(_MODEL_CONFIG))


def block_hasher(model: EngineModel) -> Any:
    """Return what hashes the blocks of a request; None without a prefix cache."""
    if not model.has_prefix_cache:
        return None
    init_none_hash(sha256)
    return get_request_block_hasher(model.block_tokens, sha256)


class ScriptedEngine:
    """vLLM's scheduler, stepped in virtual time; logs its machine's events and decisions."""

    def __init__(
        self,
        directory: Path,
        model: EngineModel,
        scheduler: dict[str, Any],
        *,
        is_async: bool,
        long_prefill_tokens: int = 0,
    ) -> None:
        self.model = model
        self.now = 0.0
        self.steps = 0
        self.empty_steps = 0
        self.cached_tokens = 0
        """Prompt tokens that calls found in the cache when they first started."""
        self.log: list[tuple[str, str, float]] = []
        self._finished: list[CallRecord] = []
        self._writing: set[str] = set()
        self._answers: dict[str, list[int]] = {}
        self.first_token_s: dict[str, float] = {}
        """When each call got its first token."""
        self._scheduler: ProgramScheduler = make_scheduler(
            AsyncProgramScheduler if is_async else SyncProgramScheduler,
            directory,
            model,
            {"autellix": {"scheduler": scheduler}},
            is_async=is_async,
            long_prefill_tokens=long_prefill_tokens,
        )
        assert self._scheduler.plugin is not None
        self._plugin = self._scheduler.plugin
        self._scheduler.clock = lambda: self.now
        self._transfers: ScriptedTransfers | None = None
        if self._scheduler.connector is not None:
            kv_cache_config = self._scheduler.kv_cache_config
            self._transfers = ScriptedTransfers(
                self._scheduler.vllm_config, kv_cache_config, model, self._scheduler.clock
            )
        self._hasher = block_hasher(model)
        self._watch(self._plugin.tracker.machine)

    @property
    def is_idle(self) -> bool:
        """Whether no call waits or runs."""
        return not self._scheduler.get_num_unfinished_requests()

    def submit(self, call_id: str, prompt: list[int], answer: list[int], extra_args: dict[str, Any]) -> None:
        """Add a call that arrives now."""
        self._answers[call_id] = answer
        parameters = SamplingParams(
            temperature=0.0, max_tokens=len(answer), ignore_eos=True, extra_args=extra_args
        )
        request = Request(
            request_id=call_id,
            prompt_token_ids=prompt,
            sampling_params=parameters,
            pooling_params=None,
            block_hasher=self._hasher,
        )
        self._scheduler.add_request(request)

    def end_program(self, program_id: str) -> None:
        """End a program, which has no call left."""
        self._plugin.tracker.machine.end_program(program_id, self.now)
        if self._scheduler.connector is not None:
            self._scheduler.connector.manager.end_programs([program_id])

    def begin(self) -> tuple[Any, float]:
        """Schedule a step; return it and the time at which it ends."""
        output = self._scheduler.schedule()
        self.cached_tokens += sum(call.num_computed_tokens for call in output.scheduled_new_reqs)
        if self._transfers is not None:
            self._transfers.begin(output)
        if output.num_scheduled_tokens:
            return output, self.now + self._step_time_s(output)
        self.empty_steps += 1
        # vLLM's engine turns at once when a step is empty, because running calls gave up their blocks. Where
        # calls wait for transfers, it turns until one is over.
        next_end_s = None if self._transfers is None else self._transfers.next_end_s
        if next_end_s is None:
            # Where calls only wait for the end of a standstill, it sleeps for a moment.
            is_standing = self._plugin.tracker.machine.admission.wake_s < math.inf
            return output, self.now + is_standing * max(self.model.step_s, LEAST_WAIT_S)
        return output, min(self.now + self.model.step_s, max(self.now, next_end_s))

    def _step_time_s(self, output: Any) -> float:
        decodes = read = context_tokens = 0
        pairs = 0.0
        for call_id, count in output.num_scheduled_tokens.items():
            # With this step's tokens.
            computed = self._scheduler.requests[call_id].num_computed_tokens
            if call_id in self._writing:
                decodes += 1
                context_tokens += computed
            else:
                read += count
                pairs += attended_pairs(computed - count, count)
        starts = len(output.scheduled_new_reqs) + len(output.scheduled_cached_reqs.resumed_req_ids)
        return self.model.step_time_s(decodes, read, starts, context_tokens, pairs)

    def end(self, output: Any) -> list[CallRecord]:
        """Give every call whose context is complete a token; return the records of those that finished."""
        ids = list(output.num_scheduled_tokens)
        sampled = [self._sample(self._scheduler.requests[call_id]) for call_id in ids]
        writing = {call_id for call_id, tokens in zip(ids, sampled, strict=True) if tokens}
        for call_id in writing:
            self.first_token_s.setdefault(call_id, self.now)
        self._writing |= writing
        places = {call_id: place for place, call_id in enumerate(ids)}
        self._finished.clear()
        self._scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index=places,
                sampled_token_ids=sampled,
                kv_connector_output=None if self._transfers is None else self._transfers.end(output),
            ),
        )
        self.steps += bool(ids)
        self._plugin.tracker.machine.check()
        return list(self._finished)

    def report(self) -> dict[str, Any]:
        """Return what happened."""
        return {
            "log": self.log,
            "first_token_s": self.first_token_s,
            "steps": self.steps,
            "empty_steps": self.empty_steps,
            "cached_tokens": self.cached_tokens,
            "loads": self._loads(),
            "is_degraded": self._scheduler.is_degraded,
            "scheduler": type(self._scheduler).__name__,
            "slot_preemptions": self._plugin.decisions.slot_preemptions,
            "block_preemptions": self._plugin.decisions.block_preemptions,
        }

    def _loads(self) -> int:
        connector = self._scheduler.connector
        return 0 if connector is None else connector.manager.tally["jobs", "load"]

    def _sample(self, request: Any) -> list[int]:
        return (
            [] if request.is_prefill_chunk else [self._answers[request.request_id][request.num_output_tokens]]
        )

    def _watch(self, machine: Any) -> None:
        """Log the machine's events from the plugin and its decisions, with the time of each."""
        originals = {
            name: getattr(machine, name)
            for name in ("arrive", "start", "preempt", "finish", "review", "tick")
        }

        def arrive(arrival: Arrival, now: float) -> Any:
            self.log.append(("arrive", arrival.call_id, now))
            return originals["arrive"](arrival, now)

        def start(call_id: str, now: float) -> None:
            self.log.append(("start", call_id, now))
            originals["start"](call_id, now)

        def preempt(call_id: str, now: float, **fact: Any) -> None:
            self._writing.discard(call_id)
            self.log.append(("preempt", call_id, now))
            originals["preempt"](call_id, now, **fact)

        def finish(call_id: str, now: float, **left: Any) -> CallRecord:
            self._writing.discard(call_id)
            self.log.append(("finish", call_id, now))
            self._finished.append(originals["finish"](call_id, now, **left))
            return self._finished[-1]

        def review(now: float, step: int, tokens_of: Any) -> list[str]:
            changed: list[str] = originals["review"](now, step, tokens_of)
            for call_id in changed:
                what = "admit" if machine.call(call_id).is_admitted else "withdraw"
                self.log.append((what, call_id, now))
            return changed

        def tick(now: float) -> Any:
            changes = originals["tick"](now)
            self.log += [(str(change.reason), change.call_id, now) for change in changes]
            return changes

        for function in (arrive, start, preempt, finish, review, tick):
            setattr(machine, function.__name__, function)


@dataclasses.dataclass(slots=True)
class _Program:
    trace: ProgramTrace
    missing: list[int]
    tokens_left: int
    left: int = 0
    contexts: list[list[int]] = dataclasses.field(default_factory=list)
    """Each call's prompt and answer."""


class Client:
    """Makes the calls of programs, each when its parents have finished and its gap has passed.

    Where the policy reads the parents of calls, it tells the engine what a call inherits, as a gateway does:
    the engine is told no parents.
    """

    def __init__(self, engine: ScriptedEngine, config: SchedulerConfig, has_hints: bool) -> None:
        self._engine = engine
        self._policy = make_policy(config.policy)
        self._has_hints = has_hints
        self._programs: list[_Program] = []
        self._table = ProcessTable()
        # In the order in which the simulator lets calls arrive that arrive at once.
        self._arrivals: list[tuple[float, int, int]] = []

    def play(self, arrivals: list[tuple[float, ProgramTrace]]) -> None:
        """Play programs to their end."""
        for number, (arrival_s, trace) in enumerate(arrivals):
            missing = [len(set(call.parents)) for call in trace.calls]
            tokens = sum(max(1, call.decode_tokens) for call in trace.calls)
            program = _Program(trace, missing, tokens, left=len(trace.calls))
            self._programs.append(program)
            _write_contexts(program, number)
            for call in trace.calls:
                if not call.parents:
                    self._plan(number, call, arrival_s)
        engine = self._engine
        while self._arrivals or not engine.is_idle:
            if engine.is_idle:
                engine.now = self._arrivals[0][0]
            while self._arrivals and self._arrivals[0][0] <= engine.now:
                self._submit()
            output, end_s = engine.begin()
            while self._arrivals and self._arrivals[0][0] < end_s:
                engine.now = self._arrivals[0][0]
                self._submit()
            engine.now = end_s
            self._finish(engine.end(output))

    def _plan(self, program: int, call: CallTrace, ready_s: float) -> None:
        heapq.heappush(self._arrivals, (ready_s + (call.gap_before_s or 0.0), program, call.id))

    def _submit(self) -> None:
        _, number, call_number = heapq.heappop(self._arrivals)
        program = self._programs[number]
        call = program.trace.calls[call_number]
        identity: dict[str, Any] = {
            "autellix_program": str(number),
            "autellix_call": f"{number}.{call_number}",
            "autellix_thread": call.thread,
            "autellix_class": program.trace.source,
        }
        if self._has_hints:
            identity["autellix_expected_tokens"] = program.tokens_left
        if self._policy.reads_parents:
            identity |= self._inherited(number, call)
        context = program.contexts[call_number]
        prompt, answer = context[: call.prefill_tokens], context[call.prefill_tokens :]
        self._engine.submit(f"{number}.{call_number}", prompt, answer, identity)

    def _inherited(self, number: int, call: CallTrace) -> dict[str, float]:
        entry = self._table.begin(str(number), f"{number}.{call.id}", self._engine.now)
        parents = [f"{number}.{parent}" for parent in call.parents]
        service_s = self._policy.inherit(entry.service_s, self._table.parent_ends_s(str(number), parents))
        return {
            "autellix_service_s": service_s,
            "autellix_program_service_s": entry.service_s,
            "autellix_wait_s": entry.wait_s,
        }

    def _finish(self, records: list[CallRecord]) -> None:
        for record in records:
            number, call_number = map(int, record.call_id.split("."))
            program = self._programs[number]
            if self._policy.reads_parents:
                self._complete(record)
            tokens = max(1, program.trace.calls[call_number].decode_tokens)
            program.tokens_left -= tokens
            program.left -= 1
            for child in program.trace.calls:
                if call_number in child.parents:
                    program.missing[child.id] -= 1
                    if program.missing[child.id] == 0:
                        self._plan(number, child, self._engine.now)
            if program.left == 0:
                self._engine.end_program(str(number))

    def _complete(self, record: CallRecord) -> None:
        self._table.complete(
            record.program_id,
            record.call_id,
            record.finish_s,
            policy=self._policy,
            inherited_service_s=record.inherited_service_s,
            service_s=record.service_s,
            wait_s=record.table_wait_s,
        )


def _write_contexts(program: _Program, number: int) -> None:
    """Make up each call's prompt and answer; only what the trace says is shared is the same."""
    generator = random.Random(f"contexts:{number}")
    prefix = system_prefix(program.trace)
    system: list[int] = []
    if prefix is not None:
        same = random.Random(f"prefix:{prefix.key}")
        system = [same.randrange(VOCABULARY) for _ in range(prefix.length)]
    for call in program.trace.calls:
        shared = [] if call.id else list(system)
        if call.prefix_from is not None:
            shared = program.contexts[call.prefix_from][: call.shared_prefix_tokens]
        own_tokens = call.prefill_tokens + max(1, call.decode_tokens) - len(shared)
        program.contexts.append(shared + [generator.randrange(VOCABULARY) for _ in range(own_tokens)])


def run(scenario: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Play one scenario and return its log."""
    config = scheduler_from_mapping(scenario["scheduler"])
    model = EngineModel(**scenario["model"])
    engine = ScriptedEngine(
        directory,
        model,
        scenario["scheduler"],
        is_async=scenario["is_async"],
        long_prefill_tokens=scenario.get("long_prefill_tokens", 0),
    )
    arrivals = [(arrival_s, program_from_mapping(item)) for arrival_s, item in scenario["arrivals"]]
    Client(engine, config, scenario["has_hints"]).play(arrivals)
    return engine.report()


DRILL_STEPS = 1500
MAX_EMPTY_STEPS = 40
"""Contexts are measured every 16 steps; an engine that does nothing for longer stands still."""


class Drill:
    """Random clients on one engine: programs of all sizes that may vanish, or never say that they end."""

    def __init__(self, directory: Path, scenario: dict[str, Any]) -> None:
        self._generator = random.Random(scenario["seed"])
        self._model = EngineModel(**scenario["model"])
        self._engine = ScriptedEngine(
            directory, self._model, scenario["scheduler"], is_async=scenario["is_async"]
        )
        self._scheduler: Any = self._engine._scheduler
        self._prefixes = [self._tokens(size) for size in (0, 40, 120)]
        self._contexts: dict[str, list[int]] = {}
        self._numbers = itertools.count()
        self._most_tokens = (self._model.kv_blocks or 0) * self._model.block_tokens - 1
        self._empty_steps = 0
        self.held_back = 0
        self.aborts = 0
        self.finished = 0

    def play(self) -> dict[str, Any]:
        """Submit, abort, pause and step at random, then let the engine finish what is left."""
        for _ in range(DRILL_STEPS):
            chance = self._generator.random()
            if chance < 0.12:
                self._submit()
            elif chance < 0.14 and self._scheduler.requests:
                self._abort(self._generator.choice(list(self._scheduler.requests)))
            elif chance < 0.15:
                self._play_paused()
            self._step()
        while not self._engine.is_idle:
            self._step()
        self._scheduler.plugin.tracker.machine.check()
        counts = {"held_back": self.held_back, "aborts": self.aborts, "finished": self.finished}
        pool = self._scheduler.kv_cache_manager.block_pool
        left = self._model.kv_blocks - pool.get_num_free_blocks()
        return self._engine.report() | counts | {"blocks_left": left, "log": []}

    def _submit(self) -> None:
        """Let a new program begin, or one go on where it was."""
        programs = list(self._contexts)
        if programs and self._generator.random() < 0.6:
            program = self._generator.choice(programs)
        else:
            program = f"program-{next(self._numbers)}"
            self._contexts[program] = self._generator.choice(self._prefixes)
        answer = self._tokens(self._generator.choice([1, 5, 30]))
        prompt = self._contexts[program] + self._tokens(self._generator.choice([1, 10, 60, 200]))
        if len(prompt) + len(answer) > self._most_tokens:
            # Its end is never announced.
            del self._contexts[program]
            return
        identity: dict[str, Any] = {"autellix_program": program}
        if self._generator.random() < 0.2:
            identity |= {"autellix_last": 1}
            del self._contexts[program]
        else:
            self._contexts[program] = prompt + answer
        if programs and self._generator.random() < 0.2:
            ended = self._generator.choice(programs)
            self._contexts.pop(ended, None)
            identity["autellix_ended"] = json.dumps([ended])
        self._engine.submit(f"call-{next(self._numbers)}", prompt, answer, identity)

    def _abort(self, request_id: str) -> None:
        self.aborts += 1
        self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def _play_paused(self) -> None:
        """While vLLM admits nothing, running calls go on, and no program becomes active or inactive."""
        active = self._scheduler.plugin.tracker.machine.admission.memory.active
        self._scheduler.set_pause_state(PauseState.PAUSED_NEW)
        before = set(active.contexts)
        for _ in range(20):
            self._step(is_paused=True)
        assert active.contexts.keys() <= before
        self._scheduler.set_pause_state(PauseState.UNPAUSED)

    def _step(self, *, is_paused: bool = False) -> None:
        scheduler = self._scheduler
        self.held_back = max(
            self.held_back, sum(map(scheduler.plugin.tracker.is_held_back, scheduler.requests))
        )
        output, end_s = self._engine.begin()
        self._engine.now = max(end_s, self._engine.now + self._model.step_s)
        self.finished += len(self._engine.end(output))
        stands_still = not output.num_scheduled_tokens and scheduler.requests and not is_paused
        self._empty_steps = self._empty_steps + 1 if stands_still else 0
        assert self._empty_steps < MAX_EMPTY_STEPS, f"{len(scheduler.requests)} calls wait for nothing"

    def _tokens(self, count: int) -> list[int]:
        return [self._generator.randrange(VOCABULARY) for _ in range(count)]


def main() -> None:
    """Play scenarios until standard input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w")
    directory = Path(sys.argv[2])
    write_model_config(directory)
    for line in sys.stdin:
        try:
            scenario = json.loads(line)
            reply = Drill(directory, scenario).play() if "seed" in scenario else run(scenario, directory)
        except Exception:  # noqa: BLE001 -- process boundary: the test reads the error
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
