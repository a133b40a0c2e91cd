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
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MAX_OWNERS = 8
MAX_IDLE_PROGRAMS = 65_536
"""Idle programs that are remembered; beyond it the longest idle counts as ended."""


IDLE, ACTIVE, HELD_BACK = range(3)
"""Ranks of programs, worst first: without a call, with calls that may run, and held back by admission."""


@dataclass(slots=True, eq=False)
class _Program(Generic[K]):
    rank: int = IDLE
    since: int = 0
    """A growing number that orders chunks by when they got their rank."""
    calls: int = 0
    is_ending: bool = False
    chunks: OrderedDict[K, None] = field(default_factory=OrderedDict)
    """Those that are kept for it, from the front of its context."""

    @property
    def place(self) -> tuple[int, int]:
        return (self.rank, -self.since if self.rank == HELD_BACK else self.since)


@dataclass(slots=True, eq=False)
class _Chunk:
    keeper: str | None = None
    """The program in whose list it is; None: in that of no program."""
    owners: dict[str, None] = field(default_factory=dict)


class Retention(Generic[K]):
    """Programs, the chunks that each uses, and the order in which chunks are given up."""

    def __init__(self) -> None:
        self._numbers = count()
        self._programs: dict[str, _Program[K]] = {}
        self._ranks: tuple[OrderedDict[str, _Program[K]], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        """The programs of each rank, in the order in which they got it."""
        self._chunks: dict[K, _Chunk] = {}
        self._unused: OrderedDict[K, None] = OrderedDict()

    def begin_call(self, program_id: str) -> None:
        """Count a call of the program that arrives at the engine."""
        program = self._programs.setdefault(program_id, _Program())
        if not program.calls:
            program.is_ending = False
            self._move(program_id, program, ACTIVE)
        program.calls += 1

    def end_call(self, program_id: str, *, is_last: bool) -> None:
        """Remove a call that leaves the engine; a last call ends its program once all its calls have left."""
        program = self._programs[program_id]
        program.is_ending |= is_last
        program.calls -= 1
        if program.calls:
            return
        self._move(program_id, program, IDLE)
        if program.is_ending:
            self._end(program_id)
        elif len(self._ranks[IDLE]) > MAX_IDLE_PROGRAMS:
            self._end(next(iter(self._ranks[IDLE])))

    def end_program(self, program_id: str) -> None:
        """Count a program as ended, which may be unknown; one with calls ends with the last of them."""
        program = self._programs.get(program_id)
        if program is not None and program.calls:
            program.is_ending = True
        elif program is not None:
            self._end(program_id)

    def hold_back(self, program_id: str, *, is_held_back: bool) -> None:
        """Note whether the calls of a program, which has some, wait for its admission."""
        program, rank = self._programs[program_id], HELD_BACK if is_held_back else ACTIVE
        if program.rank != rank:
            self._move(program_id, program, rank)

    def add(self, key: K) -> None:
        """Add a chunk that no program uses yet."""
        self._chunks[key] = _Chunk()
        self._unused[key] = None

    def use(self, keys: Sequence[K], program_id: str) -> None:
        """Assign chunks, in the order of the context, to a program that has a call."""
        program = self._programs[program_id]
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
            elif chunk.keeper != program_id and self._programs[chunk.keeper].place < program.place:
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

    def kept(self, program_id: str) -> Collection[K]:
        """Return the chunks kept for a program; those that programs share are kept for one of them."""
        program = self._programs.get(program_id)
        return () if program is None else program.chunks.keys()

    def worst_first(self) -> Iterator[K]:
        """Yield all chunks in the order in which they should go; none may be added or discarded meanwhile."""
        yield from list(self._unused)
        idle, active, held_back = self._ranks
        for programs in (idle.values(), active.values(), reversed(held_back.values())):
            for program in list(programs):
                for key in list(reversed(program.chunks)):
                    best = self._best_owner(key)
                    if best is None or self._programs[best].place <= program.place:
                        yield key
                    else:
                        # Found again when its turn comes.
                        self._keep(key, best, is_front=True)

    def check(self) -> None:
        """Assert that every chunk is in exactly one list, and every list's chunks are known."""
        listed: list[tuple[str | None, K]] = [(None, key) for key in self._unused]
        assert sum(map(len, self._ranks)) == len(self._programs)
        for rank, programs in enumerate(self._ranks):
            since = [program.since for program in programs.values()]
            assert since == sorted(since), since
            for program_id, program in programs.items():
                assert self._programs[program_id] is program, program_id
                assert program.rank == rank, program_id
                assert (program.calls > 0) is (rank != IDLE), program_id
                listed += [(program_id, key) for key in program.chunks]
        assert len(listed) == len(self._chunks), (len(listed), len(self._chunks))
        for keeper, key in listed:
            assert self._chunks[key].keeper == keeper, key
            assert len(self._chunks[key].owners) <= MAX_OWNERS, key

    def _move(self, program_id: str, program: _Program[K], rank: int) -> None:
        self._ranks[program.rank].pop(program_id, None)
        program.rank, program.since = rank, next(self._numbers)
        self._ranks[rank][program_id] = program

    def _end(self, program_id: str) -> None:
        program = self._programs.pop(program_id)
        del self._ranks[IDLE][program_id]
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
        living = [owner for owner in self._chunks[key].owners if owner in self._programs]
        return max(living, key=lambda owner: self._programs[owner].place, default=None)

    def _keep(self, key: K, program_id: str, *, is_front: bool = False) -> None:
        chunk = self._chunks[key]
        self._unlist(key, chunk)
        chunk.keeper = program_id
        chunks = self._programs[program_id].chunks
        chunks[key] = None
        if is_front:
            chunks.move_to_end(key, last=False)

    def _unlist(self, key: K, chunk: _Chunk) -> None:
        if chunk.keeper is None:
            self._unused.pop(key, None)
        else:
            del self._programs[chunk.keeper].chunks[key]
