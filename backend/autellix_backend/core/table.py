"""The process table: one entry for every running program (section 4.2.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Protocol

from autellix_backend.core.errors import DuplicateCallError, UnknownProgramError
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.statistics import ProgramStatistics


class ServiceRule(Protocol):
    """The part of a policy that charges programs."""

    reads_parents: ClassVar[bool]
    adds_service: ClassVar[bool]

    def complete(self, program_service_s: float, inherited_s: float, model_time_s: float) -> float:
        """Return the program's service (s) after a call that inherited and ran for the given times."""
        ...


@dataclass(slots=True)
class ProgramGroup:
    """The programs of a tenant that run the same task, such as the rollouts of one prompt."""

    key: tuple[str, str]
    """The tenant and the name of the group."""
    living: dict[str, None] = field(default_factory=dict)
    """The programs in the table, by id."""
    ended: int = 0
    """Programs that have left it, while any other was there."""

    @property
    def ended_share(self) -> float:
        """The share of its programs that have ended."""
        return self.ended / (self.ended + len(self.living))


@dataclass(slots=True, kw_only=True)
class Program:
    """One entry of the process table."""

    program_id: str
    tenant: str = ""
    """The tenant of its latest call."""
    created_s: float
    """When its first call arrived."""
    is_identified: bool = True
    """Whether anything identified it; else it is one call, as far as its latest call could show."""
    service_s: float = 0.0
    """Service of completed calls: their sum (PLAS) or the longest observed path (ATLAS)."""
    wait_s: float = 0.0
    """Waiting of completed calls, over all threads, less that which promotions reset."""
    expected_s: float | None = None
    """Service still expected, running calls included; None if unknown."""
    work: float = 0.0
    """The work of finished calls (see `core.boost`), in prompt tokens: what was prefilled and decoded."""
    waiting_work: float = 0.0
    """Work of the new prompt tokens of its active calls."""
    expected_work: float | None = None
    """The work of all its calls by the latest hint of its size; None without one."""
    hints: Hints = NO_HINTS
    """What the client of its latest call says of it."""
    group: ProgramGroup | None = None
    """The group of its first call with one."""
    path_ends_s: dict[str, float] = field(default_factory=dict)
    """p(c) + t of each completed call (eq. 2), kept for policies that read parents."""
    active_calls: dict[str, str] = field(default_factory=dict)
    """Thread id of each active call, in order of arrival."""
    paused_calls: int = 0
    """Active calls that wait for their client."""
    last_arrival_s: float | None = None
    last_completion_s: float | None = None
    is_ended: bool = False
    """The program is over; its entry is dropped with its last active call."""

    @property
    def is_live(self) -> bool:
        """Whether an active call waits for a slot or runs."""
        return len(self.active_calls) > self.paused_calls

    @property
    def last_activity_s(self) -> float:
        """When the program appeared, or a call last arrived or completed."""
        moments = (self.created_s, self.last_arrival_s, self.last_completion_s)
        return max(moment for moment in moments if moment is not None)


class ProcessTable:
    """The entries of all running programs, in order of appearance."""

    def __init__(self) -> None:
        self.statistics = ProgramStatistics()
        self._programs: dict[str, Program] = {}
        self._groups: dict[tuple[str, str], ProgramGroup] = {}
        """Groups with a program here, by tenant and name."""
        # Those without active calls, the longest idle first, so that the stale ones are found at once.
        self._idle: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._programs

    def __getitem__(self, program_id: str) -> Program:
        try:
            return self._programs[program_id]
        except KeyError:
            raise UnknownProgramError(program_id) from None

    def ensure(self, program_id: str, now: float) -> Program:
        """Return the program's entry, making it if there is none."""
        program = self._programs.get(program_id)
        if program is None:
            program = self._programs[program_id] = Program(program_id=program_id, created_s=now)
            self._idle[program_id] = None
            self.statistics.begun += 1
        return program

    def get(self, program_id: str) -> Program | None:
        """Return the program's entry, or None."""
        return self._programs.get(program_id)

    def programs(self) -> Iterator[Program]:
        """Iterate over the entries in order of appearance."""
        return iter(self._programs.values())

    def merge(
        self,
        program_id: str,
        service_s: float | None = None,
        wait_s: float | None = None,
        work: float | None = None,
    ) -> Program:
        """Merge the values of another table into the program's entry: the larger value wins.

        Raises:
            UnknownProgramError: the program has no entry.
        """
        program = self[program_id]
        if service_s is not None:
            program.service_s = max(program.service_s, service_s)
        if wait_s is not None:
            program.wait_s = max(program.wait_s, wait_s)
        if work is not None:
            program.work = max(program.work, work)
        return program

    def begin(
        self, program_id: str, call_id: str, now: float, *, thread_id: str = "0", tenant: str = ""
    ) -> Program:
        """Record the arrival of a tenant's call, which reopens a program that had ended.

        Raises:
            DuplicateCallError: the program has an active call of this id.
        """
        program = self.ensure(program_id, now)
        if call_id in program.active_calls:
            raise DuplicateCallError(call_id)
        if not program.is_live:
            self.statistics.on_live(now)
        if not program.active_calls:
            del self._idle[program_id]
        program.active_calls[call_id] = thread_id
        program.tenant = tenant
        self.statistics.sizes_of(tenant)
        program.last_arrival_s = now
        program.is_ended = False
        return program

    def join(self, program: Program, group: str) -> None:
        """Add a program to a group of its tenant, unless it is in one."""
        if program.group is None:
            key = (program.tenant, group)
            program.group = self._groups.setdefault(key, ProgramGroup(key))
            program.group.living[program.program_id] = None

    def parent_ends_s(self, program_id: str, parents: Sequence[str] | None) -> list[float] | None:
        """Return the ends of the parents' paths; None if the parents, or any of them, are unknown here.

        Raises:
            UnknownProgramError: the program has no entry.
        """
        ends = self[program_id].path_ends_s
        if parents is None or any(parent not in ends for parent in parents):
            return None
        return [ends[parent] for parent in parents]

    def complete(
        self,
        program_id: str,
        call_id: str,
        now: float,
        *,
        policy: ServiceRule,
        inherited_service_s: float,
        service_s: float,
        wait_s: float,
        work: float = 0.0,
        path_id: str | None = None,
    ) -> Program:
        """Charge a call that finished or was aborted to its program (Alg. 1, lines 1-7).

        A call that was never begun here is charged all the same: another table may have seen it arrive.
        `path_id` is the name by which later calls know it as their parent, if that is not its id here.

        Raises:
            UnknownProgramError: the program has no entry.
        """
        program = self[program_id]  # Alg. 1, line 2
        program.service_s = policy.complete(program.service_s, inherited_service_s, service_s)  # line 4
        program.wait_s += wait_s  # line 5: W_p sums over threads
        program.work += work
        if policy.reads_parents:
            program.path_ends_s[path_id or call_id] = inherited_service_s + service_s
        if program.expected_s is not None:
            program.expected_s = max(0.0, program.expected_s - service_s)
        program.last_completion_s = now
        was_live = program.is_live
        program.active_calls.pop(call_id, None)
        if was_live and not program.is_live:
            self.statistics.on_idle(now)
        if not program.active_calls:
            self._idle.pop(program_id, None)
            self._idle[program_id] = None
            if program.is_ended:
                self._drop(program, now)
        return program

    def move(
        self,
        program_id: str,
        to: str,
        *,
        policy: ServiceRule,
        path_id: str,
        services_s: Sequence[float],
        wait_s: float,
        work: float,
    ) -> None:
        """Move the charges of a finished call, the first of its program, to another program.

        Under a rule of paths, the program that it leaves keeps the longest other one that is known.

        Raises:
            UnknownProgramError: one of the programs has no entry.
        """
        left, found = self[program_id], self[to]
        if policy.adds_service:
            left.service_s = max(0.0, left.service_s - sum(services_s))
        elif left.path_ends_s.pop(path_id, None) is not None:
            left.service_s = max(left.path_ends_s.values(), default=0.0)
            found.path_ends_s[path_id] = services_s[-1]
        for service_s in services_s:
            found.service_s = policy.complete(found.service_s, 0.0, service_s)
        for program, sign in ((left, -1), (found, 1)):
            program.wait_s = max(0.0, program.wait_s + sign * wait_s)
            program.work = max(0.0, program.work + sign * work)

    def add_service(
        self,
        program_id: str,
        path_id: str,
        *,
        policy: ServiceRule,
        inherited_service_s: float,
        service_s: float,
    ) -> Program | None:
        """Charge further service to a program whose call has been charged; None if it has left the table.

        `path_id` is the name by which later calls know the call; `inherited_service_s` includes what it was
        charged so far.
        """
        program = self._programs.get(program_id)
        if program is None:
            return None
        program.service_s = policy.complete(program.service_s, inherited_service_s, service_s)
        if path_id in program.path_ends_s:
            program.path_ends_s[path_id] += service_s
        if program.expected_s is not None:
            program.expected_s = max(0.0, program.expected_s - service_s)
        return program

    def pause(self, program_id: str, now: float) -> Program:
        """Record that one more active call of the program waits for its client.

        Raises:
            UnknownProgramError: the program has no entry.
        """
        program = self[program_id]
        program.paused_calls += 1
        if not program.is_live:
            self.statistics.on_idle(now)
        return program

    def resume(self, program_id: str, now: float) -> Program:
        """Record that one of them waits for its client no more.

        Raises:
            UnknownProgramError: the program has no entry.
        """
        program = self[program_id]
        if not program.is_live:
            self.statistics.on_live(now)
        program.paused_calls -= 1
        return program

    def end(self, program_id: str, now: float | None = None) -> Program | None:
        """End the program and return its entry; with active calls the entry stays until the last one leaves.

        May be called for an unknown or an ended program. Without the time, the statistics do not count it.
        """
        program = self._programs.get(program_id)
        if program is None:
            return None
        program.is_ended = True
        if not program.active_calls:
            self._drop(program, now)
        return program

    def expire(self, now: float, idle_s: float, limit: int | None = None) -> list[str]:
        """Drop the entries without active calls that were idle for this long, and return their ids.

        At most `limit` entries, the longest idle first.

        Only those entries are visited: the longest idle come first, as long as the times of calls do not go
        back.
        """
        stale: list[str] = []
        for program_id in islice(self._idle, limit):
            if now - self._programs[program_id].last_activity_s < idle_s:
                break
            stale.append(program_id)
        for program_id in stale:
            self._drop(self._programs[program_id], now)
        return stale

    def _drop(self, program: Program, now: float | None) -> None:
        del self._programs[program.program_id]
        del self._idle[program.program_id]
        if (group := program.group) is not None:
            del group.living[program.program_id]
            group.ended += 1
            if not group.living:
                del self._groups[group.key]
        if now is not None:
            # What a single call took says nothing about the sizes of programs.
            work = program.work if program.is_identified else 0.0
            self.statistics.on_ended(work, now, program.tenant)

    def check(self) -> None:
        """Assert the table's invariants."""
        idle = {name for name, program in self._programs.items() if not program.active_calls}
        assert self._idle.keys() == idle, (self._idle.keys(), idle)
        assert self.statistics.live == sum(program.is_live for program in self._programs.values())
        for program_id, program in self._programs.items():
            assert program.program_id == program_id
            assert program.service_s >= 0, program
            assert program.wait_s >= 0, program
            assert 0 <= program.paused_calls <= len(program.active_calls), program
            assert program.active_calls or not program.is_ended, program
        for key, group in self._groups.items():
            assert group.key == key
            assert group.living, key
            assert all(self._programs[program_id].group is group for program_id in group.living), key
        assert sum(len(group.living) for group in self._groups.values()) == sum(
            program.group is not None for program in self._programs.values()
        )
