"""The state of vLLM's scheduler beyond its public methods: every private name of vLLM's is used here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from autellix_backend.core.preemption import fit_together
from autellix_backend.vllm_plugin.ranked_queue import RankedRequestQueue

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


# vLLM 0.32 and 0.33 name their waiting queues differently; those that exist are ours to order.
_QUEUE_NAMES = ("waiting", "skipped_waiting", "kv_holding_waiting")
_READY_STATUSES = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
# A rank of ours has fewer bits; the client's priority is above it.
_RANK_BITS = 160

_priority = attrgetter("priority")


class SchedulerState:
    """Questions about the requests, slots and blocks of one scheduler, and the changes that we make to it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self._queues: list[RankedRequestQueue] = []
        self._holding_queues: list[RankedRequestQueue] = []
        # vLLM stops admitting at the first refusal, so one is all there is in a step.
        self._refused: Request | None = None
        self._refused_tokens = 0
        self.has_priorities = scheduler.policy == SchedulingPolicy.PRIORITY
        """Whether the operator asked for vLLM's priority policy: then our order is inside each priority."""

    @property
    def rank(self) -> int:
        """The data-parallel rank of this engine core, from 0."""
        parallel = self._scheduler.vllm_config.parallel_config
        # vLLM sets the rank itself to 0 where the ranks are independent of each other.
        return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))

    # Requests.

    @property
    def running(self) -> list[Request]:
        """The running requests."""
        return self._scheduler.running  # type: ignore[no-any-return]

    def find(self, request_id: str) -> Request | None:
        """Return a request, None if it has left."""
        return self._scheduler.requests.get(request_id)

    def worst_first(self, requests: Iterable[Request]) -> list[Request]:
        """Sort requests by priority, the last to run first."""
        return sorted(requests, key=_priority, reverse=True)

    def is_ready(self, request: Request) -> bool:
        """Whether vLLM would admit a waiting request, as far as that can be seen from outside."""
        has_stale = bool(request.num_stale_output_tokens) and not request.drop_stale_output
        # vLLM looks at a request whose load is over, or whose grammar is compiled, only when it has a slot.
        is_loaded = request.request_id in self._scheduler.finished_recving_kv_req_ids
        is_waiting = request.status in _READY_STATUSES
        return (is_waiting or is_loaded or _has_awaited_grammar(request)) and not has_stale

    def loading(self) -> list[str]:
        """Return the waiting requests whose KV blocks are allocated already."""
        if getattr(self._scheduler, "connector", None) is None:
            return []
        return [
            request.request_id
            for queue in self._holding_queues
            for request in queue
            if request.num_computed_tokens or request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        ]

    @property
    def loads_whole_contexts(self) -> bool:
        """Whether vLLM loads what is found: with one group of layers it never drops a part of it."""
        groups = self._scheduler.kv_cache_manager.kv_cache_config.kv_cache_groups
        has_replay = getattr(self._scheduler, "prefix_replay_tokens", 0)
        return len(groups) == 1 and isinstance(groups[0].kv_cache_spec, FullAttentionSpec) and not has_replay

    def may_load(self, request: Request) -> bool:
        """Whether vLLM would look for a waiting request's context in host memory."""
        is_new = request.status in _READY_STATUSES and not request.num_computed_tokens
        return is_new and self.is_ready(request) and not request.skip_reading_prefix_cache

    def tokens_of(self, request_id: str) -> int:
        """Return the present length of a request's context."""
        return int(self._scheduler.requests[request_id].num_tokens)

    def is_preemptible(self, request: Request) -> bool:
        """Whether a request runs and is not about to leave by itself."""
        is_running = request.status == RequestStatus.RUNNING
        return is_running and not _is_last_token_in_flight(request, self._scheduler.max_model_len)

    # Pauses.

    @property
    def is_paused(self) -> bool:
        """Whether vLLM admits nothing at present."""
        return bool(getattr(self._scheduler, "pause_state", PauseState.UNPAUSED) != PauseState.UNPAUSED)

    @property
    def is_draining(self) -> bool:
        """Whether vLLM finishes what has begun, and begins nothing."""
        return bool(getattr(self._scheduler, "pause_state", PauseState.UNPAUSED) == PauseState.PAUSED_NEW)

    def begun(self) -> list[Request]:
        """Return the waiting requests that have lost their slots, but for those that `finish_first` has."""
        return [r for r in self._scheduler.waiting if r.status == RequestStatus.PREEMPTED]

    def finish_first(self, request: Request) -> None:
        """Let vLLM resume a preempted request while it drains: it takes those that hold KV blocks alone."""
        self._scheduler.waiting.remove_request(request)
        self._scheduler.kv_holding_waiting.add_request(request)

    def end_drain(self) -> None:
        """Put what `finish_first` moved, and is not resumed, back to the other waiting requests."""
        holding = self._scheduler.kv_holding_waiting
        for request in list(holding):
            if request.status == RequestStatus.PREEMPTED and not request.num_computed_tokens:
                holding.remove_request(request)
                self._scheduler.waiting.add_request(request)

    # Slots and order.

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

    @property
    def has_better_waiting(self) -> bool:
        """Whether a waiting request precedes a running one: cheap enough to ask in every step."""
        heads = [queue.peek_request().priority for queue in self._queues if queue]
        return bool(heads and self.running) and min(heads) < max(map(_priority, self.running))

    def take_over(self, is_held_back: Callable[[str], bool], *, is_ordering: bool) -> None:
        """Order the waiting queues by our priority, and watch vLLM's blocks.

        Args:
            is_held_back: Whether a request, by its id, waits for its admission.
            is_ordering: Whether vLLM picks its own victims by our priority too.
        """
        scheduler = self._scheduler
        if is_ordering:
            scheduler.policy = SchedulingPolicy.PRIORITY
        for name in _QUEUE_NAMES:
            queue = getattr(scheduler, name, None)
            if isinstance(queue, RequestQueue):
                ranked = RankedRequestQueue(queue, lambda request: is_held_back(request.request_id))
                setattr(scheduler, name, ranked)
                self._queues.append(ranked)
                if name != _QUEUE_NAMES[0]:
                    self._holding_queues.append(ranked)
        self._watch_allocations()

    def let_go(self) -> None:
        """Give all requests the order of their arrival, and hold none back."""
        if not self._queues:
            return
        for place, request in enumerate(self._scheduler.requests.values()):
            self.rerank(request, place)
        for queue in self._queues:
            queue.release()

    @contextmanager
    def offering(self, requests: Sequence[Request]) -> Iterator[None]:
        """Offer vLLM these waiting requests alone, in a step in which all slots are taken.

        It must not be able to admit any, since they come on top of its slots: it may only start their loads.
        """
        scheduler = self._scheduler
        name = "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        limit = getattr(scheduler, name)
        setattr(scheduler, name, limit + 1 - self.free_slots)
        for queue in self._queues:
            queue.offer(requests)
        try:
            yield
        finally:
            setattr(scheduler, name, limit)
            for queue in self._queues:
                queue.offer(None)
            # No slot waits for these blocks.
            self._refused = None

    def enter(self, request: Request, rank: int) -> None:
        """Give a new request its first rank; its own priority counts where the operator wants that."""
        given = int(request.priority) if self.has_priorities else 0
        request.priority = (given << _RANK_BITS) + rank

    def rerank(self, request: Request, rank: int) -> None:
        """Give a request that has entered another rank among those of its priority."""
        request.priority = (_given_priority(request) << _RANK_BITS) + rank

    def given_priority(self, request_id: str) -> int:
        """Return the priority that a request came with, 0 where it does not count; smaller goes first."""
        return _given_priority(self._scheduler.requests[request_id])

    def reposition(self, request_id: str, priority: int) -> None:
        """Give a request another priority, and its place in the waiting queues."""
        request = self._scheduler.requests[request_id]
        self.rerank(request, priority)
        for queue in self._queues:
            if request in queue:
                queue.move_request(request)

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

    # KV blocks.

    @property
    def kv_tokens(self) -> float:
        """The tokens that fit into KV memory.

        Layers that keep a window of each context do not count: what they take is small and does not grow.
        """
        manager = self._scheduler.kv_cache_manager
        specs = [group.kv_cache_spec for group in manager.kv_cache_config.kv_cache_groups]
        token_blocks = sum(
            1 / spec.block_size for spec in specs if getattr(spec, "sliding_window", None) is None
        )
        # One is vLLM's null block.
        return (manager.block_pool.num_gpu_blocks - 1) / token_blocks if token_blocks else math.inf

    @property
    def hash_block_tokens(self) -> int:
        """The tokens of a block, as vLLM hashes them."""
        return int(getattr(self._scheduler, "hash_block_size", self._scheduler.block_size))

    @property
    def is_caching(self) -> bool:
        """Whether the contexts of finished requests stay in KV memory."""
        return bool(self._scheduler.kv_cache_manager.enable_caching)

    @property
    def is_short_of_blocks(self) -> bool:
        """Whether a waiting request was refused KV blocks in the latest step."""
        return self._refused is not None

    def take_refused(self) -> Request | None:
        """Return once the request that was refused KV blocks."""
        request, self._refused = self._refused, None
        return request

    def missing_blocks(self) -> int:
        """Estimate how many KV blocks the last refused request lacks."""
        manager = self._scheduler.kv_cache_manager
        needed = _blocks_of(manager, self._refused_tokens)
        reserve = int(getattr(manager, "watermark_blocks", 0))
        return int(needed + reserve - manager.block_pool.get_num_free_blocks())

    def held_blocks(self, request_id: str) -> int:
        """Return the number of KV blocks of a running request."""
        return sum(map(len, self._scheduler.kv_cache_manager.get_block_ids(request_id)))

    def can_free_blocks(self, request: Request) -> bool:
        """Whether a preemption frees the blocks of a request at once."""
        return bool(self._scheduler._request_blocks_can_be_freed(request))

    def keeps_contexts(self) -> bool:
        """Whether the prefix cache keeps the contexts of all requests, running and waiting."""
        manager, requests = self._scheduler.kv_cache_manager, self._scheduler.requests.values()
        waiting = (request for request in requests if request.status != RequestStatus.RUNNING)
        needs = (_blocks_of(manager, request.num_tokens) for request in waiting)
        return bool(manager.enable_caching) and fit_together(needs, manager.block_pool.get_num_free_blocks())

    def _watch_allocations(self) -> None:
        """Wrap the manager's `allocate_slots` to remember refusals to waiting requests."""
        manager = self._scheduler.kv_cache_manager
        allocate = manager.allocate_slots

        def allocate_slots(request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, num_new_tokens, *args, **kwargs)
            if blocks is None and request.status != RequestStatus.RUNNING:
                self._refused = request
                self._refused_tokens = _wanted_tokens(request, num_new_tokens, kwargs)
            return blocks

        manager.allocate_slots = allocate_slots


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


def _given_priority(request: Request) -> int:
    # A rank may be a little below zero.
    return int(request.priority + (1 << (_RANK_BITS - 1))) >> _RANK_BITS


def _is_last_token_in_flight(request: Request, max_model_len: int) -> bool:
    """Whether a running request is about to leave by itself, with nothing left to compute."""
    placeholders = request.num_output_placeholders
    if not placeholders:
        return False
    # The same bound by which vLLM knows that no further step is needed.
    known_tokens = request.num_computed_tokens + 2 - placeholders
    return bool(known_tokens >= min(request.num_prompt_tokens + request.max_tokens, max_model_len))


def _blocks_of(kv_cache_manager: Any, tokens: int) -> int:
    """Return the KV blocks of so many tokens, in all groups of layers."""
    groups = kv_cache_manager.kv_cache_config.kv_cache_groups
    return sum(-(-tokens // group.kv_cache_spec.block_size) for group in groups)


def _wanted_tokens(request: Request, num_new_tokens: int, options: dict[str, Any]) -> int:
    """Return the tokens that must fit before vLLM admits the request: its next chunk, or all of it."""
    if options.get("full_sequence_must_fit"):
        return int(request.num_tokens - options.get("num_new_computed_tokens", 0))
    return int(num_new_tokens)
