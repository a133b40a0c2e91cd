"""Which chunks of KV cache in host memory go first, by the programs that use them.

The order, worst first:

1. chunks that no living program uses, longest without one first;
2. chunks of programs that have no call in the engine, longest idle first: they wait for a tool or a person,
   and their last use does not predict their next;
3. chunks of programs with calls that may run, least recently called first: the engine has most of these too;
4. chunks of programs that admission holds back, the latest first: these will be loaded, and no other memory
   has them.

A program loses its chunks from the end of its context, since what follows a gap is of no use. A chunk is kept
for the best-placed of the latest MAX_OWNERS programs that used it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MAX_OWNERS = 8
MAX_IDLE_PROGRAMS = 65_536
"""Idle programs that are remembered; beyond it the longest idle counts as ended."""


@dataclass(slots=True, eq=False)
class _Program(Generic[K]):
    since: int
    """When it got its first running call, or lost its last: a number that grows."""
    calls: int = 0
    is_held_back: bool = False
    is_ending: bool = False
    chunks: OrderedDict[K, None] = field(default_factory=OrderedDict)
    """Those that are kept for it, from the front of its context."""

    @property
    def place(self) -> tuple[int, int]:
        if self.is_held_back:
            return (2, -self.since)
        return (int(self.calls > 0), self.since)


@dataclass(slots=True, eq=False)
class _Chunk:
    keeper: str | None = None
    """The program in whose list it is; None: in that of no program."""
    owners: dict[str, None] = field(default_factory=dict)


class Retention(Generic[K]):
    """Programs, the chunks that each uses, and the order in which chunks are given up."""

    def __init__(self) -> None:
        self._numbers = count()
        self._idle: OrderedDict[str, _Program[K]] = OrderedDict()
        self._active: OrderedDict[str, _Program[K]] = OrderedDict()
        self._held_back: OrderedDict[str, _Program[K]] = OrderedDict()
        self._chunks: dict[K, _Chunk] = {}
        self._unused: OrderedDict[K, None] = OrderedDict()

    def begin_call(self, program_id: str) -> None:
        """Count a call of the program that arrives at the engine."""
        program = self._called(program_id)
        if program is None:
            program = self._idle.pop(program_id, None) or _Program(0)
            program.since = next(self._numbers)
            program.is_ending = False
            self._active[program_id] = program
        program.calls += 1

    def end_call(self, program_id: str, *, is_last: bool) -> None:
        """Remove a call that leaves the engine; a last call ends its program once all its calls have left."""
        program = self._called(program_id)
        assert program is not None, program_id
        program.is_ending |= is_last
        program.calls -= 1
        if program.calls:
            return
        del (self._held_back if program.is_held_back else self._active)[program_id]
        program.is_held_back = False
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
        elif (program := self._called(program_id)) is not None:
            program.is_ending = True

    def hold_back(self, program_id: str, *, is_held_back: bool) -> None:
        """Note whether the calls of a program, which has some, wait for its admission."""
        program = self._called(program_id)
        assert program is not None, program_id
        if program.is_held_back is is_held_back:
            return
        last, here = (self._active, self._held_back)[:: 1 if is_held_back else -1]
        del last[program_id]
        program.is_held_back = is_held_back
        program.since = next(self._numbers)
        here[program_id] = program

    def add(self, key: K) -> None:
        """Add a chunk that no program uses yet."""
        self._chunks[key] = _Chunk()
        self._unused[key] = None

    def use(self, keys: Sequence[K], program_id: str) -> None:
        """Assign chunks, in the order of the context, to a program that has a call."""
        program = self._called(program_id)
        assert program is not None, program_id
        taken_over: list[K] = []
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
        # The chunks taken over are the front of the context, which both programs share.
        for key in reversed(taken_over):
            self._keep(key, program_id, is_front=True)

    def discard(self, key: K) -> None:
        """Drop a chunk that is gone."""
        self._unlist(key, self._chunks.pop(key))

    def clear(self) -> None:
        """Drop all chunks; the programs stay."""
        for key in list(self._chunks):
            self.discard(key)

    def kept(self, program_id: str) -> int:
        """Return how many chunks are kept for a program; those that it shares count for one of its users."""
        program = self._find(program_id)
        return 0 if program is None else len(program.chunks)

    def worst_first(self) -> Iterator[K]:
        """Yield all chunks in the order in which they should go; none may be added or discarded meanwhile."""
        yield from list(self._unused)
        for programs in (self._idle.values(), self._active.values(), reversed(self._held_back.values())):
            for program in list(programs):
                for key in list(reversed(program.chunks)):
                    best = self._best_owner(key)
                    if best is None or self._place(best) <= program.place:
                        yield key
                    else:
                        # Found again when its turn comes.
                        self._keep(key, best, is_front=True)

    def check(self) -> None:
        """Assert that every chunk is in exactly one list, and every list's chunks are known."""
        listed: list[tuple[str | None, K]] = [(None, key) for key in self._unused]
        for programs, rank in ((self._idle, 0), (self._active, 1), (self._held_back, 2)):
            since = [program.since for program in programs.values()]
            assert since == sorted(since), since
            for program_id, program in programs.items():
                assert program.place[0] == rank, program_id
                assert (program.calls > 0) is (rank > 0), program_id
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

    def _best_owner(self, key: K) -> str | None:
        living = [owner for owner in self._chunks[key].owners if self._find(owner) is not None]
        return max(living, key=self._place, default=None)

    def _find(self, program_id: str) -> _Program[K] | None:
        return self._called(program_id) or self._idle.get(program_id)

    def _called(self, program_id: str) -> _Program[K] | None:
        return self._active.get(program_id) or self._held_back.get(program_id)

    def _place(self, program_id: str) -> tuple[int, int]:
        program = self._find(program_id)
        assert program is not None, program_id
        return program.place

    def _keep(self, key: K, program_id: str, *, is_front: bool = False) -> None:
        chunk = self._chunks[key]
        self._unlist(key, chunk)
        chunk.keeper = program_id
        program = self._find(program_id)
        assert program is not None, program_id
        program.chunks[key] = None
        if is_front:
            program.chunks.move_to_end(key, last=False)

    def _unlist(self, key: K, chunk: _Chunk) -> None:
        if chunk.keeper is None:
            self._unused.pop(key, None)
            return
        program = self._find(chunk.keeper)
        assert program is not None, chunk.keeper
        del program.chunks[key]
