"""Which chunks of KV cache in host memory go first, by the programs that use them.

The order, worst first:

1. chunks that no living program uses, or that the latest calls of none have used, longest without one first:
   a compacted history is of no more use;
2. chunks of programs that have no call in the engine, longest idle first: they wait for a tool or a person,
   and their last use does not predict their next;
3. chunks of programs with calls, least recently called first;
4. chunks of programs that admission counts on, the latest first: what is active in the engine, and what is
   parked here. Without admission there are none.

A program loses its chunks from the end of its context, since what follows a gap is of no use. A chunk is kept
for the best-placed of the latest MAX_OWNERS programs that used it, or for the one that it was kept for.
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


IDLE, CALLING, KEPT = range(3)
"""Ranks of programs, worst first: without a call, with calls, and those that admission counts on."""


@dataclass(slots=True, eq=False)
class _Program(Generic[K]):
    rank: int = IDLE
    since: int = 0
    """A growing number that orders chunks by when they got their rank."""
    calls: int = 0
    is_kept: bool = False
    used: set[K] = field(default_factory=set)
    """Chunks that its calls have used since it last had none."""
    is_ending: bool = False
    chunks: OrderedDict[K, None] = field(default_factory=OrderedDict)
    """Chunks that are kept for it, from the front of its context."""

    @property
    def place(self) -> tuple[int, int]:
        return (self.rank, -self.since if self.rank == KEPT else self.since)

    @property
    def right_rank(self) -> int:
        if self.is_kept:
            return KEPT
        return CALLING if self.calls else IDLE


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
        program.calls += 1
        if program.calls == 1:
            program.is_ending = False
            self._place(program_id, program)

    def end_call(self, program_id: str, *, is_last: bool) -> None:
        """Remove a call that leaves the engine; a last call ends its program once all its calls have left."""
        program = self._programs[program_id]
        program.is_ending |= is_last
        program.calls -= 1
        if program.calls:
            return
        self._release_unused(program_id, program)
        self._place(program_id, program)
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

    def keep(self, program_id: str, *, is_kept: bool) -> None:
        """Note whether admission counts on the chunks of a program, which may be unknown."""
        program = self._programs.get(program_id)
        if program is not None and program.is_kept != is_kept:
            program.is_kept = is_kept
            self._place(program_id, program)

    def add(self, key: K) -> None:
        """Add a chunk that no program uses yet."""
        self._chunks[key] = _Chunk()
        self._unused[key] = None

    def use(self, keys: Sequence[K], program_id: str) -> None:
        """Assign chunks, in the order of the context, to a program that has a call."""
        program = self._programs[program_id]
        program.used.update(keys)
        taken_over: list[K] = []
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is None:
                continue
            chunk.owners.pop(program_id, None)
            chunk.owners[program_id] = None
            if len(chunk.owners) > MAX_OWNERS:
                # Not the one in whose list it is.
                del chunk.owners[next(owner for owner in chunk.owners if owner != chunk.keeper)]
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
        idle, calling, kept = self._ranks
        for programs in (idle.values(), calling.values(), reversed(kept.values())):
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
                assert rank == program.right_rank, program_id
                assert program.calls or not program.used, program_id
                listed += [(program_id, key) for key in program.chunks]
        assert len(listed) == len(self._chunks), (len(listed), len(self._chunks))
        for keeper, key in listed:
            assert self._chunks[key].keeper == keeper, key
            assert keeper is None or keeper in self._chunks[key].owners, key
            assert len(self._chunks[key].owners) <= MAX_OWNERS, key

    def _place(self, program_id: str, program: _Program[K]) -> None:
        """Put a program behind all others of its rank; one that admission counts on keeps its place."""
        if program_id in self._ranks[KEPT] and program.is_kept:
            return
        self._ranks[program.rank].pop(program_id, None)
        program.rank, program.since = program.right_rank, next(self._numbers)
        self._ranks[program.rank][program_id] = program

    def _release_unused(self, program_id: str, program: _Program[K]) -> None:
        """Take the chunks that the latest calls of a program have not used from it, if they used any."""
        used, program.used = program.used, set()
        for key in [key for key in reversed(program.chunks) if key not in used] if used else ():
            del self._chunks[key].owners[program_id]
            self._pass_on(key)

    def _end(self, program_id: str) -> None:
        program = self._programs.pop(program_id)
        del self._ranks[program.rank][program_id]
        for key in reversed(program.chunks):
            self._chunks[key].keeper = None
            self._pass_on(key)

    def _pass_on(self, key: K) -> None:
        """Give a chunk that its keeper has no use for to the best-placed other user."""
        chunk = self._chunks[key]
        best = self._best_owner(key)
        if best is not None:
            self._keep(key, best, is_front=True)
            return
        self._unlist(key, chunk)
        chunk.keeper = None
        chunk.owners.clear()
        self._unused[key] = None

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
