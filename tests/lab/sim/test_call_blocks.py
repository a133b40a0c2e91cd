"""Which blocks calls share, hold and lose, on a cache of a few blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.kv import Segment
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.prefixes import SystemPrefix
from autellix_lab.workload.trace import CallTrace

BLOCK = 16
PREFIX = SystemPrefix("tools", (4 * BLOCK, 4 * BLOCK))
"""Four blocks, with which the first two calls of a program begin."""


def blocks_of(kv_blocks: int | None = None, **fields: Any) -> CallBlocks:
    return CallBlocks(EngineModel(kv_blocks=kv_blocks, block_tokens=BLOCK, **fields), is_priced=False)


def call_of(blocks: int, *, base: EngineCall | None = None, prefix: SystemPrefix | None = None) -> EngineCall:
    """A call whose prompt fills some blocks, and repeats all of the base's."""
    trace = CallTrace(
        id=0 if base is None else 1,
        parents=(),
        thread="0",
        prefill_tokens=blocks * BLOCK,
        decode_tokens=1,
        shared_prefix_tokens=0 if base is None else base.prompt_tokens,
        prefix_from=None if base is None else 0,
    )
    call = EngineCall(f"c{blocks}", "p", trace, parents=(), prefix=prefix)
    call.base = base
    return call


def prefill(cache: CallBlocks, call: EngineCall, budget: int = 10_000) -> bool:
    """Admit a call and complete its first chunk."""
    if not cache.enter(call, budget, 0):
        return False
    call.computed, call.chunk = call.computed + call.chunk, 0
    return True


def test_a_refused_call_does_not_refresh_its_cached_blocks() -> None:
    """As in vLLM, which asks for the blocks before it touches the cached ones."""
    cache = blocks_of(10)
    older, newer = call_of(4), call_of(4)
    for call in (older, newer):
        assert prefill(cache, call)
        cache.release(call)
    assert not cache.enter(call_of(11, base=older), 10_000, 0)
    assert prefill(cache, call_of(5))

    found = [cache.kv.reach(call.segment, 4) for call in (older, newer)]

    assert found == [1, 4]


def test_a_refused_call_keeps_what_it_had() -> None:
    """A preempted call whose base was evicted in part has its own blocks until it gets others."""
    cache = blocks_of(10)
    base = call_of(4)
    assert prefill(cache, base)
    call = call_of(8, base=base)
    assert prefill(cache, call)
    segment = call.segment
    cache.release(base)
    cache.release(call)
    big = call_of(9)
    assert prefill(cache, big)

    assert not cache.enter(call, 10_000, 0)

    assert call.segment is segment
    cache.release(big)
    assert prefill(cache, call)
    assert call.segment is not segment
    assert cache.kv.available == 2


def test_a_prefix_is_found_once_it_is_computed() -> None:
    """The second call finds the first one's chunk and computes the rest, which the first then duplicates."""
    cache = blocks_of()
    first, second, third = (call_of(6, prefix=PREFIX) for _ in range(3))
    assert prefill(cache, first, budget=2 * BLOCK)
    assert prefill(cache, second)
    first.chunk = 4 * BLOCK
    assert cache.extend(first)
    assert prefill(cache, third)

    assert [call.cached_tokens for call in (first, second, third)] == [0, 2 * BLOCK, 4 * BLOCK]
    segments = [call.segment for call in (first, second, third)]
    assert [(segment.shared, segment.blocks) for segment in segments if segment] == [(2, 4), (4, 2), (4, 2)]


def test_a_prefix_outlives_its_programs_and_is_evicted_last() -> None:
    cache = blocks_of(13)
    first = call_of(6, prefix=PREFIX)
    assert prefill(cache, first)
    cache.release(first)
    assert cache.kv.available == 13

    other = call_of(8)
    assert prefill(cache, other)
    second = call_of(4, prefix=PREFIX)
    assert prefill(cache, second)

    # The last token of a prompt is always computed.
    assert second.cached_tokens == 3 * BLOCK
    assert cache.kv.evicted_blocks == 2


def test_an_evicted_prefix_is_computed_again() -> None:
    """In part or as a whole, by the next program, and then found by the one after it."""
    for lost in (2, 4):
        cache = blocks_of(10)
        first = call_of(5, prefix=PREFIX)
        assert prefill(cache, first)
        cache.release(first)
        filler = call_of(6 + lost)
        assert prefill(cache, filler)
        cache.release(filler)
        second, third = (call_of(5, prefix=PREFIX) for _ in range(2))

        assert prefill(cache, second)
        assert prefill(cache, third)

        assert second.cached_tokens == (4 - lost) * BLOCK
        assert third.cached_tokens == 4 * BLOCK
        cache.release(second)
        cache.release(third)
        assert cache.kv.available == 10


def test_a_later_call_finds_the_prefix_where_its_base_is_gone() -> None:
    """As on another engine, or after the base's own copy was evicted."""
    cache = blocks_of()
    first = call_of(6, prefix=PREFIX)
    assert prefill(cache, first)
    beside_it, elsewhere, without = (
        call_of(8, base=base, prefix=PREFIX) for base in (first, call_of(6), None)
    )
    for call in (beside_it, elsewhere, without):
        assert prefill(cache, call)

    assert beside_it.cached_tokens == 6 * BLOCK
    assert elsewhere.cached_tokens == without.cached_tokens == 4 * BLOCK


@pytest.mark.parametrize("resume", ["recompute", "swap", "host"])
def test_preempted_calls_release_the_prefix(resume: str) -> None:
    cache = blocks_of(20, resume=resume)
    calls = [call_of(6, prefix=PREFIX) for _ in range(2)]
    assert all(prefill(cache, call) for call in calls)
    for call in calls:
        if cache.host is not None:
            cache.host.arrive(call)
        cache.preempt(call)
    assert cache.kv.available == 20
    assert all(prefill(cache, call) for call in calls)
    for call in calls:
        cache.release(call)
    assert cache.kv.available == 20


def test_what_nobody_shares_of_a_context_is_evicted_while_the_rest_is_held() -> None:
    """A later call holds the part of an earlier one that it repeats, and no more."""
    cache = blocks_of(12)
    base = call_of(8)
    assert prefill(cache, base)
    cache.release(base)
    later = call_of(4, base=base)
    later.shared_tokens = 3 * BLOCK
    assert prefill(cache, later)

    assert cache.kv.available == 12 - 4
    assert prefill(cache, call_of(8))
    assert cache.kv.reach(base.segment, 8) == 3


def test_a_block_that_is_not_full_is_free_at_once() -> None:
    """Nobody can find it, so that it is used before any cached block is evicted."""
    cache = blocks_of(5)
    first = call_of(2)
    first.prompt_tokens += 1
    assert prefill(cache, first)
    cache.release(first)

    assert prefill(cache, call_of(3))
    assert cache.kv.evicted_blocks == 0
    again = call_of(2, base=first)
    assert prefill(cache, again)
    assert again.cached_tokens == BLOCK


def test_a_preempted_call_keeps_its_blocks_where_others_share_some_of_them() -> None:
    cache = blocks_of()
    call = call_of(6)
    assert prefill(cache, call)
    sibling = call_of(4, base=call)
    sibling.shared_tokens = 3 * BLOCK
    assert prefill(cache, sibling)
    cache.preempt(call)
    assert prefill(cache, call)

    assert call.recomputed_tokens == 1
    assert sibling.cached_tokens == 3 * BLOCK


def test_without_a_prefix_cache_nothing_is_shared() -> None:
    cache = blocks_of(20, has_prefix_cache=False)
    calls = [call_of(6, prefix=PREFIX) for _ in range(2)]
    assert all(prefill(cache, call) for call in calls)
    assert [call.cached_tokens for call in calls] == [0, 0]
    assert cache.kv.available == 8


@pytest.mark.parametrize("resume", ["recompute", "swap"])
@given(data=st.data())
@settings(max_examples=60)
def test_no_block_is_lost_or_counted_twice(data: st.DataObject, resume: str) -> None:
    """Calls with and without prefixes come, prefill in chunks, are preempted and go."""
    cache = blocks_of(24, resume=resume)
    prefixes = (PREFIX, SystemPrefix("policy", (6 * BLOCK, 6 * BLOCK)), None)
    running: list[EngineCall] = []
    waiting: list[EngineCall] = []
    for _ in range(data.draw(st.integers(1, 40))):
        move = data.draw(st.sampled_from(("arrive", "enter", "extend", "preempt", "finish")))
        if move == "arrive":
            base = data.draw(st.sampled_from([*running, None]))
            prefix = data.draw(st.sampled_from(prefixes))
            blocks = data.draw(st.integers(6, 12)) + (base.prompt_tokens // BLOCK if base else 0)
            waiting.append(call_of(blocks, base=base, prefix=prefix))
        elif move == "enter" and waiting:
            call = data.draw(st.sampled_from(waiting))
            if prefill(cache, call, budget=data.draw(st.integers(1, 5)) * BLOCK):
                waiting.remove(call)
                running.append(call)
        elif move == "extend" and running:
            call = data.draw(st.sampled_from(running))
            call.chunk = min(call.known - call.computed, 2 * BLOCK)
            if cache.extend(call):
                call.computed += call.chunk
            call.chunk = 0
        elif move in ("preempt", "finish") and running:
            call = running.pop()
            if move == "preempt":
                cache.preempt(call)
                waiting.append(call)
            else:
                cache.release(call)
        assert 0 <= cache.kv.available <= 24
        held = {id(found): found for call in running for found in chain_of(call.segment)}
        assert 24 - cache.kv.available == sum(found.blocks for found in held.values())
    for call in running:
        cache.release(call)
    assert cache.kv.available == 24


def chain_of(segment: Segment | None) -> Iterator[Segment]:
    """A segment and those that it shares."""
    while segment is not None:
        yield segment
        segment = segment.parent if segment.shared else None
