"""Which chunks of KV cache in host memory go first, by the programs that use them. Nothing here knows vLLM.

The order, worst first:

1. chunks that no living program uses, longest without one first;
2. chunks of programs that have no call in the engine, longest idle first: they wait for a tool or a person,
   and when they were used last says nothing of when they come back;
3. chunks of programs with a call, least recently called first.

A program's chunks go from the end of its context, since what comes after a gap is of no use. A chunk counts
as its best-placed program's; it remembers the latest MAX_OWNERS that used it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

__all__ = ["MAX_IDLE_PROGRAMS", "MAX_OWNERS", "Retention"]

MAX_OWNERS = 8
MAX_IDLE_PROGRAMS = 65_536
"""Idle programs that are remembered; beyond it the longest idle counts as ended."""


@dataclass(slots=True, eq=False)
class _Program:
    since: int
    """When it got its first running call, or lost its last: a number that grows."""
    calls: int = 0
    is_ending: bool = False
    chunks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Those that are kept for it, from the front of its context."""

    @property
    def place(self) -> tuple[bool, int]:
        return (self.calls > 0, self.since)


@dataclass(slots=True, eq=False)
class _Chunk:
    keeper: str | None = None
    """The program in whose list it is; None: in that of no program."""
    owners: dict[str, None] = field(default_factory=dict)


class Retention:
    """Programs, the chunks that each uses, and the order in which chunks are given up."""

    def __init__(self) -> None:
        self._numbers = count()
        self._idle: OrderedDict[str, _Program] = OrderedDict()
        self._active: OrderedDict[str, _Program] = OrderedDict()
        self._chunks: dict[bytes, _Chunk] = {}
        self._unused: OrderedDict[bytes, None] = OrderedDict()

    def begin_call(self, program_id: str) -> None:
        """Count a call of the program that arrives at the engine."""
        program = self._active.get(program_id)
        if program is None:
            program = self._idle.pop(program_id, None) or _Program(0)
            program.since = next(self._numbers)
            program.is_ending = False
            self._active[program_id] = program
        program.calls += 1

    def end_call(self, program_id: str, *, is_last: bool) -> None:
        """Remove a call that leaves the engine; a last call ends its program once all its calls have left."""
        program = self._active[program_id]
        program.is_ending |= is_last
        program.calls -= 1
        if program.calls:
            return
        del self._active[program_id]
        program.since = next(self._numbers)
        self._idle[program_id] = program
        if program.is_ending:
            self._end(program_id)
        elif len(self._idle) > MAX_IDLE_PROGRAMS:
            self._end(next(iter(self._idle)))

    def end_program(self, program_id: str) -> None:
        """Count a program as ended, which may be unknown; one with calls ends with the last of them."""
        if program_id in self._idle:
            self._end(program_id)
        elif program_id in self._active:
            self._active[program_id].is_ending = True

    def add(self, key: bytes) -> None:
        """Add a chunk that no program uses yet."""
        self._chunks[key] = _Chunk()
        self._unused[key] = None

    def use(self, keys: Sequence[bytes], program_id: str) -> None:
        """Assign chunks, in the order of the context, to a program that has a call."""
        program = self._active[program_id]
        taken_over: list[bytes] = []
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is None:
                continue
            chunk.owners.pop(program_id, None)
            chunk.owners[program_id] = None
            if len(chunk.owners) > MAX_OWNERS:
                del chunk.owners[next(iter(chunk.owners))]
            if chunk.keeper is None:
                self._keep(key, program_id)
            elif chunk.keeper != program_id and self._place(chunk.keeper) < program.place:
                taken_over.append(key)
        # What was another's is the front of the context, which the two share.
        for key in reversed(taken_over):
            self._keep(key, program_id, is_front=True)

    def discard(self, key: bytes) -> None:
        """Drop a chunk that is gone."""
        self._unlist(key, self._chunks.pop(key))

    def clear(self) -> None:
        """Drop all chunks; the programs stay."""
        for key in list(self._chunks):
            self.discard(key)

    def worst_first(self) -> Iterator[bytes]:
        """Yield all chunks in the order in which they should go; none may be added or discarded meanwhile."""
        yield from list(self._unused)
        for programs in (self._idle, self._active):
            for program in list(programs.values()):
                for key in list(reversed(program.chunks)):
                    best = self._best_owner(key)
                    if best is None or self._place(best) <= program.place:
                        yield key
                    else:
                        # Found again when its turn comes.
                        self._keep(key, best, is_front=True)

    def check(self) -> None:
        """Assert that every chunk is in exactly one list, and every list's chunks are known."""
        listed: list[tuple[str | None, bytes]] = [(None, key) for key in self._unused]
        for programs, is_active in ((self._idle, False), (self._active, True)):
            places = [program.place for program in programs.values()]
            assert places == sorted(places), places
            for program_id, program in programs.items():
                assert (program.calls > 0) is is_active, program_id
                listed += [(program_id, key) for key in program.chunks]
        assert len(listed) == len(self._chunks), (len(listed), len(self._chunks))
        for keeper, key in listed:
            assert self._chunks[key].keeper == keeper, key
            assert len(self._chunks[key].owners) <= MAX_OWNERS, key

    def _end(self, program_id: str) -> None:
        program = self._idle.pop(program_id)
        for key in reversed(program.chunks):
            chunk = self._chunks[key]
            chunk.keeper = None
            best = self._best_owner(key)
            if best is None:
                chunk.owners.clear()
                self._unused[key] = None
            else:
                self._keep(key, best, is_front=True)

    def _best_owner(self, key: bytes) -> str | None:
        living = [owner for owner in self._chunks[key].owners if self._find(owner) is not None]
        return max(living, key=self._place, default=None)

    def _find(self, program_id: str) -> _Program | None:
        return self._active.get(program_id) or self._idle.get(program_id)

    def _place(self, program_id: str) -> tuple[bool, int]:
        program = self._find(program_id)
        assert program is not None, program_id
        return program.place

    def _keep(self, key: bytes, program_id: str, *, is_front: bool = False) -> None:
        chunk = self._chunks[key]
        self._unlist(key, chunk)
        chunk.keeper = program_id
        program = self._find(program_id)
        assert program is not None, program_id
        program.chunks[key] = None
        if is_front:
            program.chunks.move_to_end(key, last=False)

    def _unlist(self, key: bytes, chunk: _Chunk) -> None:
        if chunk.keeper is None:
            self._unused.pop(key, None)
            return
        program = self._find(chunk.keeper)
        assert program is not None, chunk.keeper
        del program.chunks[key]
