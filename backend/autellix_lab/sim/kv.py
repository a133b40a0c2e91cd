"""KV blocks of one engine: the calls that hold them, and the prefix cache.

A call's content is a prefix shared with an earlier call of its program, and a segment of its own. A system
prefix that programs share is a segment without a call: the calls that compute its blocks move them there.

Calls hold a segment while they use it (its own call, or later ones that share it; where they share a part,
it is split). After that its full blocks stay in the prefix cache until blocks are needed: segments are
evicted least recently used first, each from its tail, as in vLLM.
"""

from __future__ import annotations

import heapq
import math


class Segment:
    """The blocks that one call added behind `shared` blocks of its parent's content."""

    __slots__ = ("blocks", "full", "is_open", "is_prefix", "parent", "shared", "stamp", "users")

    def __init__(self, parent: Segment | None, shared: int) -> None:
        self.parent = parent
        self.shared = shared
        self.blocks = 0
        self.full = 0
        """Full blocks, which the cache can find; while the call runs, those of its prompt."""
        self.users = 0
        self.stamp = -1
        self.is_open = True
        """Whether its call may add blocks."""
        self.is_prefix = False
        """Whether programs share it: it is found again after an eviction, and never split."""

    @property
    def end(self) -> int:
        """The blocks of the content up to its end."""
        return self.shared + self.blocks


class KvBlocks:
    """A pool of blocks; with `total` None it is unbounded."""

    def __init__(self, total: int | None, block_tokens: int, *, has_prefix_cache: bool) -> None:
        self._free: float = math.inf if total is None else total
        self._total = self._free
        self._has_prefix_cache = has_prefix_cache
        self._evictable = 0
        self._block_tokens = block_tokens
        # By s % block_tokens: the decoding calls that need a block in step s.
        self._growing = [0] * block_tokens
        self._growing_calls = 0
        self._lru: list[tuple[int, int, int, Segment]] = []
        """Stamp, the parts of one segment from its tail, and a number that makes entries different."""
        self._next_stamp = 0
        self._entries = 0
        self.evicted_blocks = 0

    @property
    def available(self) -> float:
        """Free and evictable blocks."""
        return self._free + self._evictable

    def reach(self, segment: Segment | None, want: int) -> int:
        """Return how many of the first `want` blocks of a segment's content are present without a gap."""
        chain: list[tuple[Segment, int]] = []
        while segment is not None:
            if want > segment.shared:
                chain.append((segment, want))
                want = segment.shared
            segment = segment.parent
        have = 0
        for link, limit in reversed(chain):
            if have < link.shared:
                break
            have = link.shared + min(link.blocks, link.full, limit - link.shared)
        return have

    def allocate(self, segment: Segment, blocks: int, reserve: int = 0) -> bool:
        """Allocate blocks to a held segment; return False and change nothing if there are not enough.

        As many as `reserve` are free afterwards, if there are enough of them.
        """
        if blocks > self.available:
            return False
        self.make_free(min(blocks + reserve, self.available))
        self._free -= blocks
        segment.blocks += blocks
        return True

    def move_to_prefix(self, segment: Segment, prefix: Segment, blocks: int) -> None:
        """Move the full blocks of a held segment that continue a prefix, of `blocks` blocks in all, to it.

        Nothing happens if another call has computed them first: then the segment's blocks are duplicates.
        """
        moved = min(blocks - segment.shared, segment.full)
        continues = segment.parent is prefix or not segment.shared
        if moved <= 0 or not continues or segment.shared != prefix.blocks:
            return
        if segment.parent is not prefix:
            segment.parent = prefix
            prefix.users, prefix.stamp = segment.users, -1
        segment.shared += moved
        segment.blocks -= moved
        segment.full -= moved
        prefix.blocks += moved
        prefix.full = prefix.blocks

    def split(self, segment: Segment, blocks: int) -> Segment:
        """Cut the content's first blocks off a segment that has more; return the new segment of them."""
        head = Segment(segment.parent, segment.shared)
        head.is_open = False
        head.blocks = head.full = blocks - segment.shared
        head.users, head.stamp = segment.users, segment.stamp
        segment.parent, segment.shared = head, blocks
        segment.blocks -= head.blocks
        segment.full -= head.full
        if not segment.users:
            self._queue(head)
            self._queue(segment)
        return head

    def start_growing(self, step: int, tokens: int) -> None:
        """Add a call that has `tokens` tokens before `step` and gains one in each step from then on."""
        self._growing[(step - tokens) % self._block_tokens] += 1
        self._growing_calls += 1

    def stop_growing(self, step: int, tokens: int) -> None:
        """Undo start_growing() at a later step, with the call's tokens at that step."""
        self._growing[(step - tokens) % self._block_tokens] -= 1
        self._growing_calls -= 1

    def growth(self, step: int, steps: int) -> int:
        """Return the blocks that growing calls will need in `steps` steps from `step` on."""
        rounds, rest = divmod(steps, self._block_tokens)
        phases = (self._growing[(step + offset) % self._block_tokens] for offset in range(rest))
        return rounds * self._growing_calls + sum(phases)

    def most_steps(self, step: int, steps: float) -> float:
        """Return how many of these steps the available blocks allow the growing calls."""
        if self.available == math.inf or not self._growing_calls:
            return steps
        rounds, rest = divmod(int(self.available), self._growing_calls)
        found = rounds * self._block_tokens
        while found < steps and rest >= (need := self._growing[(step + found) % self._block_tokens]):
            rest -= need
            found += 1
        return min(steps, found)

    def make_free(self, blocks: float) -> None:
        """Evict until this many blocks are free; there are enough of them."""
        if blocks > self._free:
            self._evict(int(blocks - self._free))

    def grow(self, step: int, steps: int) -> None:
        """Take the blocks that growing calls need in these steps; assign() counts them to segments."""
        blocks = self.growth(step, steps)
        assert blocks <= self.available, "a stretch was longer than the blocks for it"
        self.make_free(blocks)
        self._free -= blocks

    def assign(self, segment: Segment, blocks: int) -> None:
        """Count blocks of a growing call to its segment."""
        segment.blocks += blocks

    def unheld_blocks(self, segment: Segment | None) -> int:
        """Return the evictable blocks that hold() would protect."""
        blocks = 0
        while segment is not None:
            if segment.users == 0:
                blocks += segment.blocks
            segment = segment.parent if segment.shared else None
        return blocks

    def hold(self, segment: Segment | None) -> None:
        """Protect a segment and its ancestors from eviction."""
        while segment is not None:
            if segment.users == 0:
                self._evictable -= segment.blocks
                segment.stamp = -1
            segment.users += 1
            segment = segment.parent if segment.shared else None

    def release(self, segment: Segment | None) -> None:
        """Undo one hold(); segments without a holder become evictable, the tail of the chain first."""
        while segment is not None:
            segment.users -= 1
            if segment.users == 0:
                self._to_cache(segment)
            segment = segment.parent if segment.shared else None

    def touch(self, segment: Segment | None) -> None:
        """Let the cached blocks of a segment's content outlive all others; those of its tail go first."""
        while segment is not None:
            if segment.users == 0:
                segment.stamp = self._next_stamp
                self._next_stamp += 1
                self._queue(segment)
            segment = segment.parent if segment.shared else None

    def drop(self, segment: Segment) -> None:
        """Free the blocks of a segment without a holder at once."""
        assert not segment.users
        self._evictable -= segment.blocks
        segment.stamp = -1
        self._free += segment.blocks
        segment.blocks = 0

    def _to_cache(self, segment: Segment) -> None:
        # Nobody can find the others.
        kept = min(segment.blocks, segment.full) if self._has_prefix_cache else 0
        self._free += segment.blocks - kept
        segment.blocks = kept
        self._evictable += kept
        segment.stamp = self._next_stamp
        self._next_stamp += 1
        self._queue(segment)

    def _queue(self, segment: Segment) -> None:
        if segment.blocks and self._total != math.inf:
            self._entries += 1
            heapq.heappush(self._lru, (segment.stamp, -segment.shared, self._entries, segment))

    def _evict(self, blocks: int) -> None:
        while blocks > 0:
            stamp, shared, _, segment = self._lru[0]
            is_present = (segment.stamp, -segment.shared) == (stamp, shared)
            taken = min(blocks, segment.blocks) if is_present else 0
            segment.blocks -= taken
            self._evictable -= taken
            self._free += taken
            self.evicted_blocks += taken
            blocks -= taken
            if not is_present or segment.blocks == 0:
                heapq.heappop(self._lru)
