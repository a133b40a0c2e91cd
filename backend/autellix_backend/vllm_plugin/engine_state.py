"""The state of vLLM's scheduler beyond its public methods.

Private names of vLLM's are used here, in `request_order.py` and in `engine_blocks.py` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.preemption import StepCosts
from autellix_backend.vllm_plugin.engine_blocks import EngineBlocks
from autellix_backend.vllm_plugin.request_order import RequestOrder

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


_READY_STATUSES = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class SchedulerState:
    """The requests and slots of one scheduler, with the order and the KV blocks of its requests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self.order = RequestOrder(scheduler)
        self.blocks = EngineBlocks(scheduler)

    @property
    def step_costs(self) -> StepCosts:
        """What computing tokens again costs in steps."""
        budget = int(self._scheduler.max_num_scheduled_tokens)
        chunk = int(self._scheduler.scheduler_config.long_prefill_token_threshold)
        return StepCosts(budget=budget, chunk=min(chunk, budget) if chunk > 0 else budget)

    # Requests.

    @property
    def running(self) -> list[Request]:
        """The running requests."""
        return self._scheduler.running  # type: ignore[no-any-return]

    def find(self, request_id: str) -> Request | None:
        """Return a request, None if it has left."""
        return self._scheduler.requests.get(request_id)

    def get(self, request_id: str) -> Request:
        """Return a request that has not left."""
        return self._scheduler.requests[request_id]

    def worst_first(self, requests: Iterable[Request]) -> list[Request]:
        """Sort requests by priority, the last to run first."""
        return sorted(requests, key=attrgetter("priority"), reverse=True)

    def is_ready(self, request: Request) -> bool:
        """Whether vLLM would admit a waiting request, as far as that can be seen from outside."""
        has_stale = bool(request.num_stale_output_tokens) and not request.drop_stale_output
        # vLLM looks at a request whose load is over, or whose grammar is compiled, only when it has a slot.
        is_loaded = request.request_id in self._scheduler.finished_recving_kv_req_ids
        is_waiting = request.status in _READY_STATUSES
        return (is_waiting or is_loaded or _has_awaited_grammar(request)) and not has_stale

    def tokens_of(self, request_id: str) -> int:
        """Return the present length of a request's context."""
        return int(self._scheduler.requests[request_id].num_tokens)

    def is_preemptible(self, request: Request) -> bool:
        """Whether a request runs and is not about to leave by itself.

        Any token may end a part of a streaming session, and vLLM 0.32 loses one that has been preempted
        meanwhile.
        """
        is_running = request.status == RequestStatus.RUNNING
        may_end = request.resumable and request.num_in_flight_tokens
        return (
            is_running
            and not may_end
            and not _is_last_token_in_flight(request, self._scheduler.max_model_len)
        )

    def with_adapters(self, entering: Sequence[Request], staying: Iterable[Request]) -> list[Request]:
        """Return the requests whose LoRA adapters find a place beside those of the running ones that stay."""
        config = self._scheduler.lora_config
        if not config:
            return list(entering)
        adapters = {request.lora_request.lora_int_id for request in staying if request.lora_request}
        fitting = []
        for request in entering:
            taken = adapters | ({request.lora_request.lora_int_id} if request.lora_request else set())
            if len(taken) <= config.max_loras:
                adapters = taken
                fitting.append(request)
        return fitting

    # Pauses.

    @property
    def is_paused(self) -> bool:
        """Whether vLLM admits nothing at present."""
        return bool(getattr(self._scheduler, "pause_state", PauseState.UNPAUSED) != PauseState.UNPAUSED)

    @property
    def is_draining(self) -> bool:
        """Whether vLLM finishes what has begun, and begins nothing."""
        return bool(getattr(self._scheduler, "pause_state", PauseState.UNPAUSED) == PauseState.PAUSED_NEW)

    def holds_prefills(self, *, is_throttled: bool) -> bool:
        """Whether vLLM begins no prefill in the next step, so that decode goes on without one.

        Args:
            is_throttled: Whether the engine core asks for that, as it does between data-parallel ranks.
        """
        scheduler = self._scheduler
        # vLLM 0.33 also counts the steps between prefills itself.
        interval = getattr(scheduler, "local_prefill_interval", 1)
        if interval > 1:
            steps = scheduler.num_executed_steps + 1 - scheduler.last_prefill_step
            is_throttled |= steps < interval
        if not is_throttled:
            return False
        has_decode = any(not request.is_prefill_chunk for request in scheduler.running)
        return has_decode and not scheduler.prefill_capacity_bound

    @contextmanager
    def prefilling_alone(self) -> Iterator[None]:
        """Lift vLLM's cap on a long prefill in a step: it is there for others."""
        config = self._scheduler.scheduler_config
        cap, config.long_prefill_token_threshold = config.long_prefill_token_threshold, 0
        try:
            yield
        finally:
            config.long_prefill_token_threshold = cap

    @property
    def is_alone(self) -> bool:
        """Whether one request runs, and those that wait are all held back."""
        return len(self.running) == 1 and not self.order.has_visible

    # Slots.

    @property
    def free_slots(self) -> int:
        """The slots that vLLM may fill."""
        scheduler = self._scheduler
        limit = min(
            scheduler.max_num_running_reqs,
            getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs),
        )
        # Paused streaming sessions keep a slot of the model runner.
        paused = getattr(scheduler, "num_waiting_for_streaming_input", 0)
        return int(limit) - len(scheduler.running) - int(paused)

    def preempt(self, request: Request, now: float) -> None:
        """Preempt a running request outside vLLM's own loop, as `reset_prefix_cache` does."""
        scheduler = self._scheduler
        mode = {"drop_stale_output": True} if getattr(scheduler, "requires_kv_delivery", False) else {}
        place = scheduler.running.index(request)
        del scheduler.running[place]
        try:
            scheduler._preempt_request(request, now, **mode)
        except Exception:
            if request.status == RequestStatus.RUNNING:
                # Else it would be in no queue.
                scheduler.running.insert(place, request)
            raise
        # The model runner learns a resumed request's tokens only if the previous step did not have it.
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def cached_tokens_of(request: Request) -> int:
    """Return how many tokens of its prompt a request found in the prefix cache."""
    stats = getattr(request, "prefill_stats", None)
    cached = getattr(stats, "num_cached_tokens", None)
    if cached is None:
        cached = getattr(request, "num_cached_tokens", 0)
    return max(0, int(cached or 0))


def _has_awaited_grammar(request: Request) -> bool:
    """Whether a request waits for its grammar, and the grammar is there."""
    if request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return False
    structured = request.structured_output_request
    # One that does not compile ends the request.
    return structured is not None and not isinstance(structured.grammar, Exception | None)


def _is_last_token_in_flight(request: Request, max_model_len: int) -> bool:
    """Whether a running request is about to leave by itself, with nothing left to compute."""
    placeholders = request.num_output_placeholders
    if not placeholders:
        return False
    # The same bound by which vLLM knows that no further step is needed.
    known_tokens = request.num_computed_tokens + 2 - placeholders
    return bool(known_tokens >= min(request.num_prompt_tokens + request.max_tokens, max_model_len))
