"""The KV blocks of one engine's calls: cache hits, allocation, release, swaps and loads."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from autellix_backend.core.preemption import fit_together
from autellix_backend.core.statistics import PrefillCost
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.host import HostBlocks
from autellix_lab.sim.kv import KvBlocks, Segment
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.resume_prices import ResumePrices


class CallBlocks:
    """Allocates blocks to calls; swaps delay the next step, loads their call."""

    def __init__(self, model: EngineModel, *, is_priced: bool) -> None:
        """Make the blocks of an engine; `is_priced` asks the price of each preemption."""
        self.kv = KvBlocks(model.kv_blocks, model.block_tokens, has_prefix_cache=model.has_prefix_cache)
        has_host = model.resume == "host"
        self.host = HostBlocks(model.host_blocks, model.block_tokens) if has_host else None
        """Host memory, where the engine has some."""
        has_prices = has_host or (is_priced and model.resume != "swap")
        self._prices = ResumePrices(model.block_tokens, has_host=has_host) if has_prices else None
        """The costs of resumes; None where nothing depends on them."""
        self.swaps = 0
        self.swapped_blocks = 0
        self._model = model
        self._prefixes: dict[str, Segment] = {}
        """System prefixes by key."""
        self._delay_s = 0.0
        self._link_free_s = 0.0
        """When the loads that have begun are over."""

    def needed(self, tokens: int) -> int:
        """Return the number of blocks for a number of tokens."""
        return -(-tokens // self._model.block_tokens)

    def take_delay_s(self) -> float:
        """Return and clear the time that swaps add to the next step."""
        delay_s, self._delay_s = self._delay_s, 0.0
        return delay_s

    def use_prefill_cost(self, cost: PrefillCost) -> None:
        """Price resumes by what the engine's machine learns of its steps."""
        if self._prices is not None:
            self._prices.use_prefill_cost(cost)

    def keep_contexts(self, waiting: Iterable[EngineCall]) -> bool:
        """Return whether the cache holds all contexts, waiting calls' too, or they move to the host."""
        if self._model.resume == "swap":
            return True
        needs = (self.needed(call.known) for call in waiting)
        return self._model.has_prefix_cache and fit_together(needs, self.kv.available)

    def lost_tokens(self, call: EngineCall) -> int:
        """Return the tokens that a call, which is up to date, would compute again without its blocks."""
        return call.computed if self._prices is None else self._prices.lost_tokens(call)

    def preemption_pays(self, call: EngineCall, now: float, *, running: int) -> bool:
        """Return whether preempting a call that is up to date, one of `running` calls, pays."""
        assert self._prices is not None
        return self._prices.preemption_pays(call, now, running=running)

    def load_of(self, program_id: str, tokens: int) -> tuple[float, float]:
        """Return the share of an idle program's context that would be loaded, and the seconds of that."""
        assert self.host is not None
        assert self._prices is not None
        return self._prices.load_of(tokens, self.host.kept_tokens(program_id))

    def enter(self, call: EngineCall, budget: int, reserve: int) -> bool:
        """Look up a waiting call in the cache and allocate the blocks of its first chunk.

        Where a part of its context is to be loaded, it gets all of its blocks, and its first chunk only once
        the load is over: see start_load().

        Args:
            call: gets its chunk and its count of cached tokens.
            budget: tokens that the step can still prefill.
            reserve: blocks that other calls need in this step.

        Returns:
            Whether there were enough blocks; otherwise nothing has changed.
        """
        if call.is_swapped:
            return self._swap_in(call, budget, reserve)
        segment = self._segment_for(call)
        shared = segment.shared
        start = self._cached_tokens(call, segment)
        # Loads go into the call's own blocks.
        loaded = self._tokens_to_load(call, start)
        if loaded and not call.has_started:
            call.loaded_tokens = loaded
        start += loaded
        tokens = call.known - start if loaded else min(call.known - start, budget)
        # vLLM's default: a call is admitted only if all of its tokens fit, however small the first chunk.
        whole = max(0, self.needed(call.known) - shared - segment.blocks)
        if whole + reserve > self.kv.available - self.kv.unheld_blocks(segment):
            # Its cached blocks keep their place in the order of eviction.
            return False
        self._hold(call, segment)
        self.kv.allocate(segment, max(0, self.needed(start + tokens) - shared - segment.blocks), reserve)
        call.begin_prefill(start, 0 if loaded else tokens)
        if loaded:
            call.load_blocks = self.needed(loaded)
        else:
            self._count_full(call)
        return True

    def start_load(self, call: EngineCall, now: float) -> float:
        """Start the load that enter() has found; return when it is over."""
        assert self._prices is not None
        blocks, call.load_blocks = call.load_blocks, 0
        seconds = self._model.swap_time_s(blocks)
        self._link_free_s = max(now, self._link_free_s) + seconds
        self._prices.observe_load(blocks, seconds)
        self.swaps += 1
        self.swapped_blocks += blocks
        return self._link_free_s

    def end_load(self, call: EngineCall, budget: int) -> None:
        """Begin to prefill what the load of a call has left."""
        call.chunk = min(call.known - call.computed, budget)
        self._count_full(call)

    def wanted(self, call: EngineCall) -> int:
        """Return the blocks that a running call, which is up to date, needs for its next step."""
        assert call.segment is not None
        tokens = 1 if call.is_decoding else call.chunk
        return max(0, self.needed(call.computed + tokens) - call.segment.end)

    def extend(self, call: EngineCall) -> bool:
        """Allocate the blocks of a running call's next chunk; return False if there are not enough."""
        assert call.segment is not None
        if not self.kv.allocate(call.segment, self.wanted(call)):
            return False
        self._count_full(call)
        return True

    def grow(self, call: EngineCall, steps: int) -> None:
        """Count the tokens that a call has decoded in some steps, and the blocks that it got for them."""
        assert call.segment is not None
        call.computed += steps
        call.generated += steps
        self.kv.assign(call.segment, max(0, self.needed(call.computed) - call.segment.end))

    def release(self, call: EngineCall) -> None:
        """Release the blocks of a finished or preempted call to the prefix cache."""
        assert call.segment is not None
        self._count_full(call)
        if self.host is not None:
            self.host.store(call)
        call.segment.is_open = call.record is None
        self.kv.release(call.segment)

    def preempt(self, call: EngineCall) -> None:
        """Release a preempted call's blocks to the prefix cache, or move them to the host."""
        segment = call.segment
        assert segment is not None
        self.release(call)
        if self._model.resume == "swap":
            self._swap(self.needed(call.computed))
            if not segment.users:
                self.kv.drop(segment)
            # It resumes with private blocks: the shared ones may be evicted by then.
            call.segment, call.is_swapped = Segment(None, 0), True

    def _cached_tokens(self, call: EngineCall, segment: Segment) -> int:
        """Return how many of a waiting call's tokens the engine has in a segment."""
        own = min(segment.blocks, segment.full)
        # The last token is always computed: the next one comes from it.
        return min((segment.shared + own) * self._model.block_tokens, call.known - 1)

    def _tokens_to_load(self, call: EngineCall, start: int) -> int:
        if self.host is None:
            return 0
        assert self._prices is not None
        stored = self.host.find(call, start)
        return self._prices.tokens_to_load(call, start, stored) if stored else 0

    def _count_full(self, call: EngineCall) -> None:
        """Count a call's own full blocks, which other calls find from that step on."""
        assert call.segment is not None
        full = (call.computed + call.chunk) // self._model.block_tokens
        call.segment.full = max(0, full - call.segment.shared)
        if call.prefix_key is not None and self._model.has_prefix_cache:
            prefix = self._prefixes.setdefault(call.prefix_key, Segment(None, 0))
            prefix.is_prefix = True
            self.kv.move_to_prefix(call.segment, prefix, call.prefix_tokens // self._model.block_tokens)

    def _cached(self, call: EngineCall, base: EngineCall | None) -> tuple[int, Segment | None]:
        """Return how many leading blocks other calls hold of a call, and the segment in which they end."""
        if not self._model.has_prefix_cache:
            return 0, None
        shared, parent = self._reach(base.segment if base else None, call.shared_tokens, call)
        if call.prefix_key is not None:
            prefix = self._reach(self._prefixes.get(call.prefix_key), call.prefix_tokens, call)
            shared, parent = max((shared, parent), prefix, key=itemgetter(0))
        while parent is not None and shared <= parent.shared:
            parent = parent.parent
        return shared, parent

    def _reach(self, segment: Segment | None, tokens: int, call: EngineCall) -> tuple[int, Segment | None]:
        """Return how many blocks of a call's first tokens a segment's content has, and the segment if any."""
        found = self.kv.reach(segment, min(tokens, call.known - 1) // self._model.block_tokens)
        return found, segment if found else None

    def _segment_for(self, call: EngineCall) -> Segment:
        """Return the waiting call's own segment, or a new one where others hold more of its content."""
        shared, parent = self._cached(call, call.base)
        own = call.segment
        if own is not None and self.kv.reach(own, own.end) >= max(own.shared, shared):
            return own
        if parent is not None and not parent.is_prefix and (parent.is_open or shared < parent.end):
            parent = self.kv.split(parent, shared)
        return Segment(parent, shared)

    def _hold(self, call: EngineCall, segment: Segment) -> None:
        """Hold a call's segment in place of its last one, which stays in the cache until it is evicted."""
        call.segment = segment
        self.kv.hold(segment)

    def _swap_in(self, call: EngineCall, budget: int, reserve: int) -> bool:
        assert call.segment is not None
        tokens = min(call.known - call.computed, budget)
        wanted = self.needed(call.computed + tokens)
        if wanted + reserve > self.kv.available:
            return False
        self.kv.hold(call.segment)
        self.kv.allocate(call.segment, wanted)
        self._swap(self.needed(call.computed))
        call.is_swapped, call.chunk = False, tokens
        return True

    def _swap(self, blocks: int) -> None:
        self._delay_s += self._model.swap_time_s(blocks)
        self.swaps += 1
        self.swapped_blocks += blocks
