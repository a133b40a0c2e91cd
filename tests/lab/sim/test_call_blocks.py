"""Which blocks calls share, hold and lose, on a cache of a few blocks."""

from __future__ import annotations

from typing import Any

from autellix_backend.gateway.recording.trace import CallTrace
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.model import EngineModel

BLOCK = 16


def blocks_of(kv_blocks: int | None = None, **fields: Any) -> CallBlocks:
    return CallBlocks(EngineModel(kv_blocks=kv_blocks, block_tokens=BLOCK, **fields), is_priced=False)


def call_of(blocks: int, *, base: EngineCall | None = None) -> EngineCall:
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
    return EngineCall(f"c{blocks}", "p", trace, parents=(), base=base)


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
