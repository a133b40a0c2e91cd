"""Changes of vLLM's behaviour, as a release could bring them, each a patch of its classes while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

CHANGES: dict[str, Callable[[], AbstractContextManager[None]]] = {}


def _change(patch: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    CHANGES[patch.__name__] = contextmanager(patch)
    return patch


@_change
def renamed_hook() -> Iterator[None]:
    """A method that ours overrides has another name."""
    hook = Scheduler._preempt_request
    with mock.patch.object(Scheduler, "_evict_request", hook, create=True):
        del Scheduler._preempt_request
        try:
            yield
        finally:
            Scheduler._preempt_request = hook


@_change
def renamed_method() -> Iterator[None]:
    """A method that ours calls has another name."""
    method = BlockPool.get_cached_block
    with mock.patch.object(BlockPool, "find_cached_block", method, create=True):
        del BlockPool.get_cached_block
        try:
            yield
        finally:
            BlockPool.get_cached_block = method


@_change
def required_argument() -> Iterator[None]:
    """A method that ours calls has a new required argument."""
    preempt = Scheduler._preempt_request

    def with_reason(self: Any, request: Any, timestamp: float, *, reason: str, **options: Any) -> None:
        preempt(self, request, timestamp, **options)

    with mock.patch.object(Scheduler, "_preempt_request", with_reason):
        yield


@_change
def other_return() -> Iterator[None]:
    """A method that ours calls returns a list in place of an object."""
    get = KVCacheManager.get_blocks
    with mock.patch.object(KVCacheManager, "get_blocks", lambda self, name: list(get(self, name).blocks[0])):
        yield


@_change
def other_result() -> Iterator[None]:
    """A step returns a list of outputs in place of one for each client."""
    update = Scheduler.update_from_output
    with mock.patch.object(
        Scheduler, "update_from_output", lambda self, *args: list(update(self, *args).values())
    ):
        yield


@_change
def other_end() -> Iterator[None]:
    """Aborted requests leave by another method than those that end."""

    def finish_requests(self: Any, names: Any, status: Any) -> None:
        for name in [names] if isinstance(names, str) else names:
            request = self.requests.pop(name)
            request.status = status
            if request in self.running:
                self.running.remove(request)
            self.kv_cache_manager.free(request)
            self.finished_req_ids.add(name)
            for queue in (self.waiting, self.kv_holding_waiting):
                queue.remove_requests([request])

    with mock.patch.object(Scheduler, "finish_requests", finish_requests):
        yield


@_change
def own_queue() -> Iterator[None]:
    """Each step takes the waiting requests in order of arrival, whatever queue they are in."""
    schedule = Scheduler.schedule

    def in_order_of_arrival(self: Any, *args: Any, **options: Any) -> Any:
        waiting = FCFSRequestQueue(sorted(self.waiting, key=lambda request: request.request_id))
        self.waiting = waiting
        return schedule(self, *args, **options)

    with mock.patch.object(Scheduler, "schedule", in_order_of_arrival):
        yield


@_change
def kept_progress() -> Iterator[None]:
    """A preempted request keeps its count of computed tokens, and not their blocks."""
    preempt = Scheduler._preempt_request

    def keep(self: Any, request: Any, *args: Any, **options: Any) -> None:
        computed = request.num_computed_tokens
        preempt(self, request, *args, **options)
        request.num_computed_tokens = computed // 16 * 16

    with mock.patch.object(Scheduler, "_preempt_request", keep):
        yield


@_change
def blocks_in_part() -> Iterator[None]:
    """A resumed request comes with its last block alone."""
    make = Scheduler._make_cached_request_data

    def in_part(self: Any, *args: Any, **options: Any) -> Any:
        data = make(self, *args, **options)
        for place, name in enumerate(data.req_ids):
            if name in data.resumed_req_ids:
                data.new_block_ids[place] = tuple(blocks[-1:] for blocks in data.new_block_ids[place])
        return data

    with mock.patch.object(Scheduler, "_make_cached_request_data", in_part):
        yield


@_change
def renamed_field() -> Iterator[None]:
    """A field of requests that ours reads is a method."""
    tokens = Request.num_tokens
    with mock.patch.object(Request, "num_tokens", lambda self: tokens.fget(self)):
        yield
