"""Host memory of a simulated engine: a copy of every full block, kept and given up as live.

A block is known by its content: the call that computed it first, or the system prefix, and its place. The
order in which blocks go is that of `core.retention`, as in the live connector.
"""

from __future__ import annotations

from itertools import islice

from autellix_backend.core.retention import Retention
from autellix_lab.sim.calls import BlockKey, EngineCall


class HostBlocks:
    """The blocks in host memory; with `total` None it is unbounded."""

    def __init__(self, total: int | None, block_tokens: int) -> None:
        self._total = total
        self._block_tokens = block_tokens
        self._kept: set[BlockKey] = set()
        self._retention: Retention[BlockKey] = Retention()

    def arrive(self, call: EngineCall) -> None:
        """Count a call that arrives at the engine."""
        self._retention.begin_call(call.program_id)

    def hold_back(self, call: EngineCall, *, is_held_back: bool) -> None:
        """Note whether a call waits for its program's admission."""
        self._retention.hold_back(call.program_id, is_held_back=is_held_back)

    def leave(self, call: EngineCall) -> None:
        """Remove a call that has finished."""
        self._retention.end_call(call.program_id, is_last=False)

    def end_program(self, program_id: str) -> None:
        """Make the blocks of an ended program the first to evict."""
        self._retention.end_program(program_id)

    def kept_tokens(self, program_id: str) -> int:
        """Return the tokens that are kept for a program, less those that it shares with others."""
        return self._retention.kept(program_id) * self._block_tokens

    def find(self, call: EngineCall, start: int) -> int:
        """Return the tokens behind the first `start` that host memory has of a call, without a gap."""
        place = start // self._block_tokens
        content = self._content(call, (call.known - 1) // self._block_tokens)
        found = place
        while found < len(content) and content[found] in self._kept:
            found += 1
        return max(0, found * self._block_tokens - start)

    def store(self, call: EngineCall) -> None:
        """Store the full blocks of a call that host memory lacks, and keep all for its program."""
        content = self._content(call, call.computed // self._block_tokens)
        missing = [key for key in content if key not in self._kept]
        if self._total is not None:
            missing = missing[: max(0, self._total - (len(content) - len(missing)))]
            self._evict(len(self._kept) + len(missing) - self._total, set(content))
        self._kept.update(missing)
        for key in missing:
            self._retention.add(key)
        self._retention.use(content, call.program_id)

    def _evict(self, blocks: int, protected: set[BlockKey]) -> None:
        if blocks > 0:
            worst = (key for key in self._retention.worst_first() if key not in protected)
            for key in list(islice(worst, blocks)):
                self._kept.discard(key)
                self._retention.discard(key)

    def _content(self, call: EngineCall, blocks: int) -> list[BlockKey]:
        """Return the keys of a call's first blocks."""
        if not call.content:
            shared = call.shared_tokens // self._block_tokens
            call.content = [] if call.base is None else self._content(call.base, shared)
            prefix_blocks = call.prefix_tokens // self._block_tokens
            call.content += [(call.prefix_key, place) for place in range(len(call.content), prefix_blocks)]
        call.content += [(call.call_id, place) for place in range(len(call.content), blocks)]
        return call.content[:blocks]

    def check(self) -> None:
        """Assert the invariants."""
        self._retention.check()
        assert self._total is None or len(self._kept) <= self._total
        assert set(self._retention.worst_first()) == self._kept
