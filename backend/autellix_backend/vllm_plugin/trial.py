"""A trial of our scheduler on a vLLM release that the tests do not know, before it orders any call.

A scheduler like the engine's is made beside it, small, with its own memory: two slots and a few blocks. Some
calls arrive, are held back, preempted, resumed, aborted and end within some forty steps, which take a
fraction of a second, with a runner in place of the model (`trial_runner.py`). So whatever vLLM does otherwise
than in the releases that we know shows as an error of ours, a wrong block, a wrong answer, a call that does
not end or one that starts out of turn.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from typing import Any

from vllm import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

from autellix_backend.vllm_plugin.request_order import QUEUE_NAMES
from autellix_backend.vllm_plugin.trial_runner import TrialRunner, WrongKVError, answer

BLOCK_TOKENS = 16
BLOCKS, SLOTS, STEP_TOKENS = 8, 2, 48
STEP_S = 0.01
MOST_STEPS = 400
"""About ten times the steps that the trial takes."""
_CALLS = (("a", 40, 24), ("b", 40, 20), ("c", 30, 6), ("d", 20, 30), ("e", 50, 8), ("f", 18, 3))
"""Program, prompt and answer (tokens) of each call; one arrives in every third step."""
_ABORTED = "d"
_SETTINGS = {
    "policy": "plas",
    "bounds": [0.02, 0.04, 0.08, 0.16],
    "preemption": "always",
    "admission": "working_set",
}


_WITHOUT = (
    "ec_transfer_config",
    "kv_events_config",
    "kv_transfer_config",
    "lora_config",
    "speculative_config",
)
"""Parts of the configuration that the trial leaves out."""


class TrialError(AssertionError):
    """Something that would break an engine, a call or the order of calls."""


def why_unfit(scheduler: Any) -> str | None:
    """Return what fails on this release of vLLM; None if nothing does.

    Args:
        scheduler: The engine's, which stays as it is.
    """
    try:
        _Trial(_small(scheduler)).run()
    except Exception as error:  # noqa: BLE001 -- whatever a strange vLLM does, the engine starts
        kind = "" if isinstance(error, (TrialError, WrongKVError)) else f"{type(error).__name__}: "
        return f"{kind}{error}"
    return None


def _small(scheduler: Any) -> Any:
    """Make a small scheduler like the engine's, which touches nothing outside and raises its errors."""
    base: Any = type(scheduler)

    class OnTrial(base):
        is_on_trial = True

        def _fail(self) -> None:
            raise  # noqa: PLE0704 -- called where an error is caught

    config = copy.copy(scheduler.vllm_config)
    config.scheduler_config = _changed(
        config.scheduler_config,
        max_num_seqs=SLOTS,
        max_num_active_seqs=None,
        max_num_scheduled_tokens=STEP_TOKENS,
        enable_chunked_prefill=True,
        policy="fcfs",
    )
    config.cache_config = _changed(
        config.cache_config, num_gpu_blocks=BLOCKS + 1, block_size=BLOCK_TOKENS, enable_prefix_caching=True
    )
    config.additional_config = {"autellix": {"scheduler": _SETTINGS}}
    for name in _WITHOUT:
        setattr(config, name, None)
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=config.model_config.dtype
    )
    return OnTrial(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=BLOCKS + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
        ),
        structured_output_manager=scheduler.structured_output_manager,
        block_size=BLOCK_TOKENS,
    )


def _changed(config: Any, **values: Any) -> Any:
    """Return a copy of a configuration with other values, without its checks."""
    changed = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


class _Trial:
    """A scheduler, and what happens to it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._now = 0.0
        scheduler.clock = lambda: self._now
        self._queues = {name: getattr(scheduler, name, None) for name in QUEUE_NAMES}
        self._runner = TrialRunner(BLOCK_TOKENS)
        self._pool = scheduler.kv_cache_manager.block_pool
        self._free_blocks = self._pool.get_num_free_blocks()
        self._under_way: deque[tuple[Any, Any]] = deque()
        self._is_async = bool(scheduler.vllm_config.scheduler_config.async_scheduling)
        self._answers: dict[str, list[int]] = {}
        self._held_back: set[str] = set()

    def run(self) -> None:
        """Run it to its end.

        Raises:
            TrialError: something went wrong.
        """
        scheduler = self._scheduler
        calls = deque(_CALLS)
        for step in range(MOST_STEPS):
            if calls and step % 3 == 0:
                self._arrive(*calls.popleft())
            if step == 3 * len(_CALLS) + 2:
                scheduler.finish_requests(_ABORTED, RequestStatus.FINISHED_ABORTED)
            if not calls and not scheduler.has_unfinished_requests() and not self._under_way:
                break
            self._step()
        else:
            raise TrialError(f"calls {sorted(scheduler.requests)} have not ended after {MOST_STEPS} steps")
        self._step()
        self._check_end()

    def _arrive(self, name: str, prompt_tokens: int, answer_tokens: int) -> None:
        identity = {"autellix_program": name, "autellix_call": name}
        request = Request(
            request_id=name,
            prompt_token_ids=_prompt(name, prompt_tokens),
            sampling_params=SamplingParams(max_tokens=answer_tokens, ignore_eos=True, extra_args=identity),
            pooling_params=None,
            block_hasher=_hash_blocks,
        )
        self._answers[name] = []
        self._scheduler.add_request(request)

    def _step(self) -> None:
        waiting = [
            request for request in self._scheduler.requests.values() if request not in self._scheduler.running
        ]
        output = self._scheduler.schedule()
        self._look(waiting)
        self._under_way.append((output, self._runner.execute(output)))
        self._now += STEP_S
        # As an engine does, asynchronously only while there is work.
        most = 1 if self._is_async and output.num_scheduled_tokens else 0
        while len(self._under_way) > most:
            updates = self._scheduler.update_from_output(*self._under_way.popleft())
            for each in (part for client in updates.values() for part in client.outputs):
                self._answers[each.request_id] += each.new_token_ids

    def _look(self, waiting: list[Request]) -> None:
        """Check what the scheduler has done to the requests that waited: all go in turn."""
        scheduler = self._scheduler
        tracker = scheduler.plugin.tracker
        running = {request.request_id for request in scheduler.running}
        unfinished = {name for name, request in scheduler.requests.items() if not request.is_finished()}
        if gone := [name for name in self._answers if name in tracker and name not in unfinished]:
            raise TrialError(f"call {gone[0]} has left, and is still tracked")
        ours = {name for name in unfinished if name in tracker and tracker.is_running(name)}
        if ours != running:
            raise TrialError(f"calls {sorted(running)} run, and of these the plugin knows {sorted(ours)}")
        for name, queue in self._queues.items():
            if getattr(scheduler, name, None) is not queue:
                raise TrialError(f"vLLM puts another queue in place of {name}")
        if wrong := sorted(filter(tracker.is_held_back, running)):
            raise TrialError(f"call {wrong[0]} runs, which admission holds back")
        left = []
        for request in waiting:
            name = request.request_id
            if tracker.is_held_back(name):
                self._held_back.add(name)
            # vLLM leaves a request alone whose output is in flight.
            elif name in unfinished - running and not request.num_output_placeholders:
                left.append(name)
        for name in running.intersection(request.request_id for request in waiting):
            if earlier := [other for other in left if _place(tracker, other) < _place(tracker, name)]:
                raise TrialError(f"call {name} starts before {earlier[0]}, which goes first")

    def _check_end(self) -> None:
        for name, prompt_tokens, answer_tokens in _CALLS:
            expected = answer(_prompt(name, prompt_tokens), answer_tokens, ignores_end=True)
            found = self._answers[name]
            if name == _ABORTED:
                expected = expected[: len(found)]
            if found != expected:
                raise TrialError(f"call {name} has a wrong answer: {found}, not {expected}")
        if not self._scheduler.plugin.decisions.slot_preemptions:
            raise TrialError("no call was preempted for another one")
        if not self._held_back:
            raise TrialError("no call was held back by admission")
        if missing := self._free_blocks - self._pool.get_num_free_blocks():
            raise TrialError(f"{missing} blocks are still held")


def _place(tracker: Any, name: str) -> float:
    """Return the place of a call in the order of all."""
    return float(tracker.rank(name).number)


def _hash_blocks(request: Request) -> list[BlockHash]:
    """Return the hashes of a request's full blocks that have none yet; vLLM's own have the process's seed."""
    tokens, hashed = request.all_token_ids, len(request.block_hashes)
    ends = range((hashed + 1) * BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
    return [BlockHash(hashlib.sha256(repr(list(tokens[:end])).encode()).digest()) for end in ends]


def _prompt(name: str, tokens: int) -> list[int]:
    """Return a prompt that begins like those of all other calls."""
    return [*range(1, 17), *(ord(name) + number % 5 for number in range(tokens - 16))]
