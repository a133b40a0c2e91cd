"""What must hold of our scheduler after each step, and of any at the end of a script."""

from __future__ import annotations

from typing import Any

from autellix_backend.vllm_plugin.snapshots import load_of
from autellix_lab.sim.engine_record import read_record, replay

_QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")


def watch_victims(scheduler: Any, outcome: Any) -> None:
    """Count preemptions, and assert that ours never takes a request that was scheduled in the same step."""
    allocated: set[str] = set()
    manager = scheduler.kv_cache_manager
    schedule, allocate, preempt = scheduler.schedule, manager.allocate_slots, scheduler._preempt_request

    def watch_schedule(*args: Any) -> Any:
        allocated.clear()
        output = schedule(*args)
        allocated.clear()
        return output

    def watch_allocation(request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = allocate(request, *args, **kwargs)
        if blocks is not None:
            allocated.add(request.request_id)
        return blocks

    def watch_preemption(request: Any, *args: Any, **kwargs: Any) -> None:
        outcome.preemptions += 1
        # Where we do not order, the victims are vLLM's own.
        is_ours = (
            not getattr(scheduler, "is_degraded", True) and scheduler.plugin.tracker.machine.policy.reorders
        )
        assert not (is_ours and request.request_id in allocated), "a victim was scheduled in the same step"
        preempt(request, *args, **kwargs)

    scheduler.schedule, scheduler._preempt_request = watch_schedule, watch_preemption
    manager.allocate_slots = watch_allocation


def check_record(scheduler: Any) -> None:
    """Assert that the record of the machine's events leads to the same decisions, and delete it."""
    record = scheduler.plugin.record
    record.close()
    found = replay(read_record(record.path))
    assert found.difference is None, f"the record differs: {found.difference}"
    assert found.events["arrive"] == found.events["finish"] + found.events["abort"]
    record.path.unlink()


def check_books(scheduler: Any) -> None:
    """Assert that our books are true to vLLM's, and its queues to our order."""
    assert not scheduler.is_degraded, "degraded"
    plugin = scheduler.plugin
    tracker, machine = plugin.tracker, plugin.tracker.machine
    machine.check()
    unfinished = {name for name, request in scheduler.requests.items() if not request.is_finished()}
    assert set(tracker._calls) == unfinished, "the tracker has other calls than vLLM"
    running = {request.request_id for request in scheduler.running}
    assert {name for name in unfinished if tracker.is_running(name)} == running, "other calls run"
    assert len(running) + scheduler.num_waiting_for_streaming_input <= scheduler.max_num_running_reqs
    queues = [getattr(scheduler, name) for name in _QUEUES if hasattr(scheduler, name)]
    # vLLM 0.32 loses a session that was preempted with the last token of a part in flight.
    unfinished -= {request.request_id for request in lost_sessions(scheduler)}
    waiting = [request.request_id for queue in queues for request in queue]
    assert len(waiting) == sum(map(len, queues)) == len(set(waiting)), "a queue counts wrongly"
    assert running.isdisjoint(waiting), "a request runs and waits"
    assert running.union(waiting) == unfinished, "a request neither runs nor waits"
    if plugin.is_in_charge:
        for queue in queues:
            _check_queue(scheduler, queue, tracker)
    if lost_sessions(scheduler):
        return
    counts = scheduler.get_request_counts()
    blocks = plugin.engine.blocks
    load = load_of(
        scheduler,
        tracker,
        plugin.engine.free_slots,
        block_tokens=blocks.block_tokens,
        is_block_short=blocks.is_short,
    )
    assert (load["running"], len(tracker) - load["running"]) == counts, "other counts are reported"


def lost_sessions(scheduler: Any) -> list[Any]:
    """Return the streaming sessions that neither run nor wait."""
    queues = [getattr(scheduler, name) for name in _QUEUES if hasattr(scheduler, name)]
    return [
        request
        for request in scheduler.requests.values()
        if request.resumable and not request.is_finished() and request not in scheduler.running
        if not any(request in queue for queue in queues)
    ]


def _check_queue(scheduler: Any, queue: Any, tracker: Any) -> None:
    held_back = {request for request in queue if tracker.is_held_back(request.request_id)}
    visible = [request for request in queue if request not in held_back]
    assert held_back <= scheduler.deferred_waiting, "a call that is held back counts as lack of capacity"
    assert bool(queue) == bool(visible), "a call is held back in one place only"
    assert not visible or queue.peek_request() is visible[0], "vLLM would take another request first"


def watch_order(scheduler: Any) -> None:
    """Assert before each step that the queues are in our order, as far as decisions are made in each."""
    plugin = scheduler.plugin
    put_worst_last = plugin.put_worst_last

    def check() -> None:
        for queue in plugin.engine.order._queues:
            ranks = [
                plugin.engine.order.rank(request).number
                for request in queue
                if not plugin.engine.order._holds_back(request)
            ]
            assert ranks == sorted(ranks), "a queue is not in order"
        put_worst_last()

    if plugin.tracker.machine.config.period_steps == 1:
        plugin.put_worst_last = check


def check_end(scheduler: Any, missing_blocks: int) -> str:
    """Return what is left of the requests when all should have gone."""
    names = ("requests", "running", *_QUEUES, "deferred_waiting")
    left = [name for name in names if len(getattr(scheduler, name, ()))]
    if missing_blocks:
        left.append(f"{-missing_blocks} blocks")
    plugin = getattr(scheduler, "plugin", None)
    if plugin is not None and not scheduler.is_degraded:
        plugin.tracker.machine.check()
        plugin.tracker._contexts.check()
        kept = {"calls": plugin.tracker._calls, "cooling": plugin.decisions._cooling}
        left += [name for name, each in kept.items() if each]
    return ", ".join(left)
