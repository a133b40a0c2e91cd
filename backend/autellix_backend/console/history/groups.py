"""The groups of programs that run the same task, and which of them take far longer than the rest."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from autellix_backend.console.history.history import PastProgram
from autellix_backend.core.recent import RecentMap

MAX_GROUPS = 1024
"""Groups that are kept, of all tenants together."""
MAX_TIMES = 256
"""Programs of one group whose times count, the first ones to end."""
STRAGGLER_RATIO = 2.0
"""How often the group's median a program must take to be a straggler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A living program that takes far longer than the others of its group."""

    program_id: str
    name: str | None
    group: str
    age_s: float
    median_s: float

    @property
    def over_median(self) -> float:
        """Its age over the group's median."""
        return self.age_s / self.median_s


@dataclass(slots=True, eq=False)
class _GroupTimes:
    living: dict[str, PastProgram] = field(default_factory=dict)
    """Living programs of the group that are no stragglers yet."""
    stragglers: set[str] = field(default_factory=set)
    """Living programs of the group that are stragglers."""
    times_s: list[float] = field(default_factory=list)
    """Times of the group's ended programs, ascending."""
    ended: int = 0

    @property
    def median_s(self) -> float | None:
        """The median time of its ended programs, once they are half of all."""
        if not self.ended or self.ended < len(self.living) + len(self.stragglers):
            return None
        return self.times_s[(len(self.times_s) - 1) // 2]


class ProgramGroups:
    """The groups of each tenant, as far as this gateway serves their programs."""

    def __init__(self, *, ttl_s: float, max_groups: int = MAX_GROUPS) -> None:
        """Start without groups, of which `max_groups` stay for `ttl_s` after their last call began."""
        self._groups: RecentMap[str, _GroupTimes] = RecentMap(ttl_s=ttl_s, max_entries=max_groups)

    def __len__(self) -> int:
        return len(self._groups)

    def median_s(self, program: PastProgram) -> float | None:
        """Return the median time of a program's group, once half of the group's programs have ended."""
        group = self._find(program)
        return None if group is None else group.median_s

    def on_member(self, program: PastProgram, began_s: float) -> None:
        """Note a program that has a group, as a call of it begins."""
        assert program.group is not None
        group = self._find(program) or _GroupTimes()
        if program.program_id not in group.stragglers:
            group.living[program.program_id] = program
        self._groups.put(program.tenant, program.group, group, began_s)

    def on_program_ended(self, program: PastProgram) -> None:
        """Note the time of a program that has ended."""
        group = self._find(program)
        if group is None:
            return
        group.living.pop(program.program_id, None)
        group.stragglers.discard(program.program_id)
        group.ended += 1
        if len(group.times_s) < MAX_TIMES:
            insort(group.times_s, program.duration_s)

    def take_stragglers(self, now: float) -> list[Straggler]:
        """Return the programs that have become stragglers since the last time."""
        self._groups.expire(now)
        found: list[Straggler] = []
        for group in self._groups.values():
            median_s = group.median_s
            if not median_s:
                continue
            late = [each for each in group.living.values() if now - each.start_s > STRAGGLER_RATIO * median_s]
            for program in late:
                del group.living[program.program_id]
                group.stragglers.add(program.program_id)
                found.append(_straggler(program, now, median_s))
        return found

    def _find(self, program: PastProgram) -> _GroupTimes | None:
        return None if program.group is None else self._groups.get(program.tenant, program.group)


def _straggler(program: PastProgram, now: float, median_s: float) -> Straggler:
    assert program.group is not None
    return Straggler(
        program_id=program.program_id,
        name=program.name,
        group=program.group,
        age_s=now - program.start_s,
        median_s=median_s,
    )
