"""The most recent ended programs, bounded by number, age and memory, fairly among tenants."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

from msgspec.structs import replace

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.stores.base import Adoption, adopted_start

MAX_PROGRAMS = 1000
"""Ended programs that `ps --all`, `why` and the API still know, with their calls."""
MAX_AGE_S = 86_400.0
MAX_BYTES = 64 * 2**20
"""Approximate bound of its memory, calls of living programs included."""
MAX_CALLS = 4096
"""Calls of one program that are kept; further ones are only counted."""


CALL_BYTES = 1600
"""Approximate memory of a call without its texts."""
RUN_BYTES = 104
"""Memory of one of its runs: a pair of floats."""


@dataclass(slots=True, eq=False, kw_only=True)
class PastProgram:
    """A program with its settled calls, while it lives and after its end."""

    program_id: str
    """The program's id as the backend knows it."""
    tenant: str = ""
    name: str | None = None
    group: str | None = None
    owner: str | None = None
    """The owner of its session, where identity is strict."""
    start_s: float
    """The arrival of its first call, on the gateway's clock."""
    began_at_s: float
    """The arrival of its first call, in seconds since 1970."""
    ended_at_s: float = 0.0
    """When it left the process table, in seconds since 1970; 0 while it lives."""
    calls: list[SettledCall] = field(default_factory=list)
    """Settled calls, in the order of arrival once the program has ended, of settlement until then."""
    running: int = 0
    """The number of open calls."""
    left_out: int = 0
    """Calls that were dropped to bound memory."""
    size_bytes: int = 0
    """The approximate memory that counts for it."""

    @property
    def duration_s(self) -> float:
        """From its first arrival to its last answer."""
        return max((call.settled_s for call in self.calls), default=self.start_s) - self.start_s

    @property
    def open_after_s(self) -> float:
        """From its last answer until it left the process table; 0 while it lives."""
        return max(0.0, self.ended_at_s - self.began_at_s - self.duration_s) if self.ended_at_s else 0.0

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of its calls, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(call.start.flags for call in self.calls)))


def _size_of(call: SettledCall) -> int:
    start = call.start
    texts = (
        start.call_id,
        start.thread_id,
        start.thread_name or "",
        *(start.parents or ()),
        *(tool for tool, _ in start.interceptions),
    )
    return CALL_BYTES + sum(map(len, texts)) + RUN_BYTES * len(call.runs)


class ProgramHistory:
    """Records the calls of programs from their first call on, and keeps ended programs within the bounds.

    Beyond a bound the tenant with the most loses first: its oldest ended program, or without any the calls of
    the living one that has kept calls for longest.
    """

    def __init__(
        self,
        max_programs: int = MAX_PROGRAMS,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Start empty; `clock` is the calls' clock, and `wall_clock` returns seconds since 1970."""
        self._max_programs = max_programs
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._live: dict[str, PastProgram] = {}
        self._ended: dict[str, PastProgram] = {}
        """The first to end comes first."""
        self._with_calls: defaultdict[str, OrderedDict[str, PastProgram]] = defaultdict(OrderedDict)
        """Living programs with calls by tenant, in the order of their first kept call."""
        self._counts: Counter[str] = Counter()
        """Ended programs by tenant."""
        self._bytes: Counter[str] = Counter()
        """Approximate memory by tenant, that of living programs included."""
        self.size_bytes = 0
        """Approximate memory of all of it."""
        self._on_ended: list[Callable[[PastProgram], None]] = []
        self._on_member: list[Callable[[PastProgram, float], None]] = []

    def __len__(self) -> int:
        """The number of ended programs."""
        return len(self._ended)

    def subscribe(
        self,
        on_ended: Callable[[PastProgram], None],
        on_member: Callable[[PastProgram, float], None] | None = None,
    ) -> None:
        """Publish each program that ended, and the time at which a call of one with a group began.

        Neither must raise or block.
        """
        self._on_ended.append(on_ended)
        if on_member is not None:
            self._on_member.append(on_member)

    def keep(self, program: PastProgram) -> None:
        """Add an ended program, and drop what is beyond the bounds."""
        if before := self._ended.get(program.program_id):
            self._drop(before)
        names = (program.program_id, program.group or "")
        program.size_bytes = CALL_BYTES + sum(map(len, names)) + sum(map(_size_of, program.calls))
        self._ended[program.program_id] = program
        self._counts[program.tenant] += 1
        self._count_bytes(program.tenant, program.size_bytes)
        self._expire()
        self._trim()

    def find(self, program_id: str) -> PastProgram | None:
        """Return the last ended program of an id."""
        self._expire()
        return self._ended.get(program_id)

    def living(self, program_id: str) -> PastProgram | None:
        """Return the settled calls of a program that has not ended."""
        return self._live.get(program_id)

    def programs(self, prefix: str = "") -> Iterator[PastProgram]:
        """Iterate over the ended programs whose ids have a prefix, the last to end first."""
        self._expire()
        last_first = list(reversed(self._ended.values()))
        return (program for program in last_first if program.program_id.startswith(prefix))

    def all_programs(self, prefix: str = "") -> Iterator[PastProgram]:
        """Iterate over the programs whose ids have a prefix: the living, then the ended, the last first."""
        living = list(reversed(self._live.values()))
        yield from (program for program in living if program.program_id.startswith(prefix))
        yield from self.programs(prefix)

    def on_call_begun(self, call: GatewayCall) -> None:
        """Record that a call of a program began."""
        program_id = call.start.program_id
        program = self._live.get(program_id)
        if program is None:
            program = self._live[program_id] = PastProgram(
                program_id=program_id,
                tenant=call.request.tenant.name,
                start_s=call.began_s,
                began_at_s=self._wall_clock(),
            )
        program.name = program.name or call.start.name
        program.group = program.group or call.start.hints.group or None
        program.owner = program.owner or call.start.owner
        program.running += 1
        if call.start.adopts is not None:
            self._adopt(call.start.adopts, program)
        if program.group is not None:
            for on_member in self._on_member:
                on_member(program, call.began_s)

    def _adopt(self, adoption: Adoption, program: PastProgram) -> None:
        """Move a settled call, each attempt of it, to another program; calls of other gateways stay there."""
        left = self._live.get(adoption.program_id)
        moved = [call for call in left.calls if call.start.call_id == adoption.call_id] if left else []
        if left is None or left is program or not moved:
            return
        left.calls = [call for call in left.calls if call.start.call_id != adoption.call_id]
        size_bytes = sum(map(_size_of, moved))
        left.size_bytes -= size_bytes
        program.size_bytes += size_bytes
        if not left.calls:
            self._with_calls[left.tenant].pop(left.program_id, None)
        self._with_calls[program.tenant].setdefault(program.program_id, program)
        starts = (adopted_start(call.start, program.program_id) for call in moved)
        program.calls[:0] = [replace(call, start=start) for call, start in zip(moved, starts, strict=True)]
        earlier_s = max(0.0, program.start_s - min(call.began_s for call in moved))
        program.start_s -= earlier_s
        program.began_at_s -= earlier_s

    def on_call_settled(self, settled: SettledCall) -> None:
        """Record a settled call."""
        program = self._live.get(settled.start.program_id)
        if program is None:
            return
        program.running -= 1
        if len(program.calls) >= MAX_CALLS:
            program.left_out += 1
            return
        size_bytes = _size_of(settled)
        program.calls.append(settled)
        self._with_calls[program.tenant].setdefault(program.program_id, program)
        program.size_bytes += size_bytes
        self._count_bytes(program.tenant, size_bytes)
        self._trim()

    def on_program_ended(self, program_id: str) -> None:
        """Keep an ended program, unless a new one with its id has begun."""
        program = self._live.get(program_id)
        if program is None or program.running:
            return
        del self._live[program_id]
        self._with_calls[program.tenant].pop(program_id, None)
        if not program.calls and not program.left_out:
            # Other programs have adopted all its calls.
            return
        self._count_bytes(program.tenant, -program.size_bytes)
        program.ended_at_s = self._wall_clock()
        program.calls.sort(key=attrgetter("began_s"))
        self.keep(program)
        for on_ended in self._on_ended:
            on_ended(program)

    def _drop(self, program: PastProgram) -> None:
        del self._ended[program.program_id]
        self._counts[program.tenant] -= 1
        self._count_bytes(program.tenant, -program.size_bytes)

    def _count_bytes(self, tenant: str, size_bytes: int) -> None:
        self._bytes[tenant] += size_bytes
        self.size_bytes += size_bytes

    def _expire(self) -> None:
        least_s = self._wall_clock() - self._max_age_s
        while self._ended and (first := next(iter(self._ended.values()))).ended_at_s < least_s:
            self._drop(first)

    def _trim(self) -> None:
        while len(self._ended) > self._max_programs:
            self._drop_oldest(max(self._counts, key=self._counts.__getitem__))
        while self.size_bytes > self._max_bytes:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def _drop_oldest(self, tenant: str) -> None:
        """Drop a tenant's oldest ended program, or without any the calls of a living one."""
        if self._counts[tenant]:
            self._drop(next(program for program in self._ended.values() if program.tenant == tenant))
            return
        _, program = self._with_calls[tenant].popitem(last=False)
        self._count_bytes(tenant, -program.size_bytes)
        program.left_out += len(program.calls)
        program.calls.clear()
        program.size_bytes = 0
