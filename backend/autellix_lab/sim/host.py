"""Host memory of a simulated engine: a copy of every full block, kept and given up as live.

A block is known by its content: the call that computed it first, or the system prefix, and its place. The
order in which blocks go is that of `core.retention`, as in the live connector. What it orders here are runs
of adjacent blocks, since contexts have thousands of blocks and few runs. A run loses blocks from its end, as
the blocks of a program do. A call that uses a part of a run counts as a user of all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autellix_backend.core.retention import Retention
from autellix_lab.sim.calls import EngineCall, Span


@dataclass(slots=True, eq=False)
class _Run:
    """Adjacent blocks of one call or system prefix that host memory has."""

    source: str
    start: int
    stop: int


class HostBlocks:
    """The blocks in host memory; with `total` None it is unbounded."""

    def __init__(self, total: int | None, block_tokens: int) -> None:
        self._total = total
        self._block_tokens = block_tokens
        self._blocks = 0
        self._runs: dict[str, list[_Run]] = {}
        """By source, in the order of their places."""
        self._retention: Retention[_Run] = Retention()

    def arrive(self, call: EngineCall) -> None:
        """Count a call that arrives at the engine."""
        self._retention.begin_call(call.program_id)

    @property
    def total_tokens(self) -> float:
        """The tokens that fit into host memory."""
        return math.inf if self._total is None else self._total * self._block_tokens

    def keep(self, stored: Mapping[str, bool]) -> None:
        """Note the programs whose blocks admission counts on from now on, or does not any more."""
        for program_id, is_kept in stored.items():
            self._retention.keep(program_id, is_kept=is_kept)

    def leave(self, call: EngineCall) -> None:
        """Remove a call that has finished."""
        self._retention.end_call(call.program_id, is_last=False)

    def end_program(self, program_id: str) -> None:
        """Make the blocks of an ended program the first to evict."""
        self._retention.end_program(program_id)

    def kept_tokens(self, program_id: str) -> int:
        """Return the tokens that are kept for a program, less those that it shares with others."""
        return sum(run.stop - run.start for run in self._retention.kept(program_id)) * self._block_tokens

    def find(self, call: EngineCall, start: int) -> int:
        """Return the tokens behind the first `start` that host memory has of a call, without a gap."""
        found = start // self._block_tokens
        for source, first, stop in self._content(call, (call.known - 1) // self._block_tokens):
            if found < stop:
                found = next((gap for gap, _ in self._gaps((source, max(first, found), stop))), stop)
                if found < stop:
                    break
        return max(0, found * self._block_tokens - start)

    def store(self, call: EngineCall) -> None:
        """Store the full blocks of a call that host memory lacks, and keep all for its program."""
        blocks = call.computed // self._block_tokens
        content = self._content(call, blocks)
        missing = [(span[0], *gap) for span in content for gap in self._gaps(span)]
        if self._total is not None:
            lacking = sum(stop - first for _, first, stop in missing)
            fitting = min(lacking, max(0, self._total - (blocks - lacking)))
            missing = _front(missing, fitting)
            self._evict(self._blocks + fitting - self._total, {source: stop for source, _, stop in content})
        for source, first, stop in missing:
            self._add(_Run(source, first, stop))
        self._retention.use([run for span in content for run in self._within(span)], call.program_id)

    def _add(self, run: _Run) -> None:
        self._blocks += run.stop - run.start
        runs = self._runs.setdefault(run.source, [])
        runs.append(run)
        runs.sort(key=lambda run: run.start)
        self._retention.add(run)

    def _evict(self, blocks: int, protected: dict[str, int]) -> None:
        """Evict some of the worst blocks, but of no source those in front of its protected end."""
        taken: list[tuple[_Run, int]] = []
        for run in self._retention.worst_first() if blocks > 0 else ():
            count = min(blocks, run.stop - max(run.start, protected.get(run.source, 0)))
            if count > 0:
                taken.append((run, count))
                blocks -= count
                if not blocks:
                    break
        for run, count in taken:
            self._shorten(run, count)

    def _shorten(self, run: _Run, blocks: int) -> None:
        """Drop blocks from the end of a run, and the run without blocks."""
        self._blocks -= blocks
        run.stop -= blocks
        if run.start == run.stop:
            self._retention.discard(run)
            runs = self._runs[run.source]
            runs.remove(run)
            if not runs:
                del self._runs[run.source]

    def _within(self, span: Span) -> Iterator[_Run]:
        """Yield the runs that have blocks of a span, in order."""
        source, first, stop = span
        return (run for run in self._runs.get(source, ()) if run.start < stop and run.stop > first)

    def _gaps(self, span: Span) -> Iterator[tuple[int, int]]:
        """Yield the first and the end of each part of a span that host memory lacks, in order."""
        _, first, stop = span
        for run in self._within(span):
            if first < run.start:
                yield first, run.start
            first = run.stop
        if first < stop:
            yield first, stop

    def _content(self, call: EngineCall, blocks: int) -> list[Span]:
        """Return the spans of a call's first blocks."""
        if not call.spans:
            shared = call.shared_tokens // self._block_tokens
            call.spans = [] if call.base is None else self._content(call.base, shared)
            end = call.spans[-1][2] if call.spans else 0
            prefix_blocks = call.prefix_tokens // self._block_tokens
            if call.prefix_key is not None and prefix_blocks > end:
                call.spans.append((call.prefix_key, end, prefix_blocks))
        own = call.spans[-1][2] if call.spans else 0
        return _front([*call.spans, (call.call_id, own, max(own, blocks))], blocks)

    def check(self) -> None:
        """Assert the invariants."""
        self._retention.check()
        runs = [run for found in self._runs.values() for run in found]
        assert set(self._retention.worst_first()) == set(runs)
        assert self._blocks == sum(run.stop - run.start for run in runs)
        assert self._total is None or self._blocks <= self._total
        for found in self._runs.values():
            ends = [end for run in found for end in (run.start, run.stop)]
            assert ends == sorted(ends), ends
            assert all(run.start < run.stop for run in found)


def _front(spans: list[Span], blocks: int) -> list[Span]:
    """Return the spans of the first blocks of some spans."""
    front: list[Span] = []
    for source, first, stop in spans:
        if blocks <= 0:
            break
        front.append((source, first, min(stop, first + blocks)))
        blocks -= stop - first
    return front
