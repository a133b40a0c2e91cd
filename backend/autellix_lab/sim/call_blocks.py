"""The KV blocks of one engine's calls: what a call finds in the cache, gets, leaves behind and swaps."""

from __future__ import annotations

from collections.abc import Iterable

from autellix_backend.core.preemption import fit_together
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.kv import KvBlocks, Segment
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.resume_prices import ResumePrices

__all__ = ["CallBlocks"]


class CallBlocks:
    """Hands blocks to calls; swaps delay the step that comes next."""

    def __init__(self, model: EngineModel, *, weighs: bool) -> None:
        """Make the blocks of an engine, which weighs interruptions against their price or does not."""
        self.kv = KvBlocks(model.kv_blocks, model.block_tokens, has_prefix_cache=model.has_prefix_cache)
        self._has_host = model.resume == "host"
        self._weighs = weighs and model.resume != "swap"
        has_prices = self._has_host or self._weighs
        self._prices = ResumePrices(model.block_tokens, has_host=self._has_host) if has_prices else None
        """What coming back costs; None where nobody asks."""
        self.swapped_blocks = 0
        self._model = model
        self._delay_s = 0.0

    def needed(self, tokens: int) -> int:
        """Return how many blocks so many tokens take."""
        return -(-tokens // self._model.block_tokens)

    def take_delay_s(self) -> float:
        """Return how long the swaps since the last step keep the next one waiting."""
        delay_s, self._delay_s = self._delay_s, 0.0
        return delay_s

    def note_steps(self, read_tokens: int, step_s: float, steps: int) -> None:
        """Tell the price list of equal steps, each of which read so many tokens of prompts."""
        if self._prices is not None:
            self._prices.observe_steps(read_tokens, step_s, steps)

    def are_interruptions_free(self, waiting: Iterable[EngineCall]) -> bool:
        """Say whether the cache keeps all contexts, those of the waiting calls too, or nobody asks."""
        if not self._weighs:
            return True
        needs = (self.needed(call.known) for call in waiting)
        return self._model.has_prefix_cache and fit_together(needs, self.kv.available)

    def is_worth(self, call: EngineCall, now: float, *, running: int) -> bool:
        """Say whether to interrupt one of so many running calls, which is up to date, at its price."""
        assert self._prices is not None
        return self._prices.is_worth(call, now, running=running)

    def enter(self, call: EngineCall, budget: int, reserve: int) -> bool:
        """Find what the cache has of a waiting call and get blocks for its first chunk.

        Args:
            call: it gets its chunk, and the tokens that need not be computed.
            budget: tokens that the step can still read.
            reserve: blocks that others need in this step.

        Returns:
            Whether there were enough; else nothing has changed but for the cache.
        """
        if call.is_swapped:
            return self._swap_in(call, budget, reserve)
        shared, parent = self._cached(call)
        segment = call.segment
        if segment is None or segment.shared != shared or segment.parent is not parent:
            if segment is not None and not segment.users:
                self.kv.drop(segment)
            segment = call.segment = Segment(parent, shared)
        own = min(segment.blocks, segment.full)
        # The last token is always computed, for the next one comes from it.
        start = min((shared + own) * self._model.block_tokens, call.known - 1)
        # From the host, into blocks of its own.
        loaded = self._prices.tokens_to_load(call, start) if self._prices is not None else 0
        start += loaded
        tokens = min(call.known - start, budget)
        self.kv.hold(segment)
        # As vLLM does by default, it is let in only if all of its tokens fit, whatever the first chunk is.
        whole = max(0, self.needed(call.known) - shared - segment.blocks)
        wanted = max(0, self.needed(start + tokens) - shared - segment.blocks)
        if whole + reserve > self.kv.available or not self.kv.allocate(segment, wanted):
            # Its blocks, if any, age in the cache as others' do.
            self.kv.let_go(segment)
            return False
        call.computed, call.chunk = start, tokens
        self._fill(call)
        if loaded:
            self._load(loaded // self._model.block_tokens)
        if not call.has_started:
            call.has_started, call.cached_tokens = True, start
        return True

    def extend(self, call: EngineCall) -> bool:
        """Get the blocks of the chunk that a running call reads next; False if there are not enough."""
        assert call.segment is not None
        wanted = self.needed(call.computed + call.chunk) - call.segment.shared - call.segment.blocks
        if wanted > 0 and not self.kv.allocate(call.segment, wanted):
            return False
        self._fill(call)
        return True

    def grow(self, call: EngineCall, steps: int) -> None:
        """Count the tokens that a call has written in so many steps, and the blocks that it got for them."""
        assert call.segment is not None
        call.computed += steps
        call.generated += steps
        held = call.segment.shared + call.segment.blocks
        self.kv.assign(call.segment, max(0, self.needed(call.computed) - held))

    def leave(self, call: EngineCall) -> None:
        """Leave a call's blocks to the cache: it is done, or preempted."""
        self._fill(call)
        self.kv.let_go(call.segment)

    def preempt(self, call: EngineCall) -> None:
        """Take the blocks of a call that lost its slot: the cache keeps them, or they move to the host."""
        segment = call.segment
        assert segment is not None
        self.leave(call)
        if self._has_host:
            full = call.computed // self._model.block_tokens
            call.stored_tokens = max(call.stored_tokens, full * self._model.block_tokens)
        if self._model.resume == "swap":
            self._swap(self.needed(call.computed))
            if not segment.users:
                self.kv.drop(segment)
            # All of its content comes back as its own: what it shared may be gone by then.
            call.segment, call.is_swapped = Segment(None, 0), True

    def _fill(self, call: EngineCall) -> None:
        """Note how many of a call's own blocks are full: others find them from that step on."""
        assert call.segment is not None
        full = (call.computed + call.chunk) // self._model.block_tokens
        call.segment.full = max(0, full - call.segment.shared)

    def _cached(self, call: EngineCall) -> tuple[int, Segment | None]:
        """Return how many leading blocks others have for a call, and the segment in which they end."""
        want = min(call.shared_tokens, call.known - 1) // self._model.block_tokens
        base = call.base.segment if call.base is not None else None
        shared = self.kv.reach(base, want) if self._model.has_prefix_cache else 0
        parent = base if shared else None
        while parent is not None and shared <= parent.shared:
            parent = parent.parent
        return shared, parent

    def held_tokens(self, call: EngineCall | None, tokens: int) -> int:
        """Return how many of the first tokens of a call's content are in blocks, whole blocks of them."""
        if call is None or not self._model.has_prefix_cache:
            return 0
        return self.kv.reach(call.segment, tokens // self._model.block_tokens) * self._model.block_tokens

    def _swap_in(self, call: EngineCall, budget: int, reserve: int) -> bool:
        assert call.segment is not None
        tokens = min(call.known - call.computed, budget)
        self.kv.hold(call.segment)
        wanted = self.needed(call.computed + tokens)
        if wanted + reserve > self.kv.available or not self.kv.allocate(call.segment, wanted):
            self.kv.let_go(call.segment)
            return False
        self._swap(self.needed(call.computed))
        call.is_swapped, call.chunk = False, tokens
        return True

    def _load(self, blocks: int) -> None:
        assert self._prices is not None
        self._prices.observe_load(blocks, self._model.swap_time_s(blocks))
        self._swap(blocks)

    def _swap(self, blocks: int) -> None:
        self._delay_s += self._model.swap_time_s(blocks)
        self.swapped_blocks += blocks
