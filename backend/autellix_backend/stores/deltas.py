"""What happens to programs while the shared table is out of sight, so that it merges and counts once.

A program's service is a fold of its calls by the policy's rule, an addition or a maximum. Both are
commutative and associative and begin at zero, so the calls that one gateway saw alone can be folded from zero
into one number, and that number merged into the table by the same rule later, in whatever order the gateways
return.

- A call that the table has never heard of is folded; its delta carries a version, and a delta that is sent
  again because its answer got lost is not taken twice.
- A call that the table has as running is charged under the condition that it still is: whether the table
  heard of its end before the line broke does not matter.
- A table that came back empty is told what each gateway knew last. That is a snapshot of a value that only
  grows, so the greatest snapshot is the latest one; deltas come on top.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import CallEnd, CallStart, ProgramView
from autellix_backend.stores.memory import HISTORY_CALLS, MAX_FLAGS
from autellix_backend.stores.redis_records import (
    call_sums,
    encode_charge,
    encode_entry,
    encode_start,
    merge_rule,
)

Clock = Callable[[float], float]
Running = Sequence[tuple[CallStart, float]]
"""Running calls with the moments of their starts."""


@dataclass(slots=True)
class OpenCall:
    """A call that runs at this gateway."""

    start: CallStart
    start_s: float
    is_entered: bool
    """Whether the table has it for certain."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A delta on its way to the table."""

    message: dict[str, Any]
    keys: tuple[str, ...]
    """Its running calls."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that ended."""

    start: CallStart
    start_s: float
    end: CallEnd
    finish_s: float

    def entry(self, shared: Clock) -> str:
        """Return its entry in the table's history."""
        return encode_entry(self.start, shared(self.start_s), self.end, shared(self.finish_s))


@dataclass(slots=True, kw_only=True)
class Delta:
    """What happened to one program; times are of the gateway's clock."""

    program_id: str
    created_s: float
    is_known: bool
    """Whether the table has had the program."""
    base: dict[str, float]
    """Its service and waiting before."""
    is_restoring: bool = False
    """Whether the table was lost and needs the base."""
    was_tried: bool = False
    """Whether a start may have reached the table without an answer."""
    is_ended: bool = False
    service_s: float = 0.0
    wait_s: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    path_ends_s: dict[str, float] = field(default_factory=dict)
    folded: deque[Ended] = field(default_factory=lambda: deque(maxlen=HISTORY_CALLS))
    """The latest calls that the table has never heard of."""
    settled: list[Ended] = field(default_factory=list)
    """Calls that the table has as running."""
    event_s: float = 0.0

    def fold(self, policy: Policy, ended: Ended) -> None:
        """Take in a call that the table has never heard of."""
        end = ended.end
        for service_s in end.services_s or (0.0,):
            self.service_s = policy.complete(self.service_s, end.inherited_service_s, service_s)
        self.wait_s += end.table_wait_s
        self._count(end)
        charge = encode_charge(policy, end)
        if "path_end_s" in charge:
            self.path_ends_s[ended.start.call_id] = charge["path_end_s"]
        self.folded.append(ended)

    def message(
        self, policy: Policy, copy: ProgramView | None, running: Running, shared: Clock
    ) -> dict[str, Any]:
        """Return the delta as the script takes it.

        Args:
            policy: Whose rule merges.
            copy: The gateway's copy of the program, None if it has ended there.
            running: The calls that the gateway runs.
            shared: Turns moments into those of the table's clock.
        """
        message: dict[str, Any] = {
            "program": self.program_id,
            "is_known": self.is_known,
            "rule": merge_rule(policy),
            "services": [self.service_s],
            "wait_s": self.wait_s,
            "sums": self.sums,
            "path_ends_s": self.path_ends_s,
            "flags": () if copy is None else copy.flags,
            "most_flags": MAX_FLAGS,
            "sessions": () if copy is None else copy.session_ids,
            "entries": [ended.entry(shared) for ended in self.folded],
            "most_entries": HISTORY_CALLS,
            "running": {start.key: encode_start(start, shared(start_s)) for start, start_s in running},
            "settled": [_settled(policy, ended, shared) for ended in self.settled],
            "is_ended": self.is_ended,
            "created": shared(self.created_s),
            "event": shared(self.event_s),
        }
        if copy is not None and copy.name:
            message["name"] = copy.name
        if self.is_restoring:
            message["base"] = self.base
        return message

    def restore(self, copy: ProgramView | None, path_ends_s: Mapping[str, float]) -> None:
        """Make it a delta for a table that was lost: what the gateway knows of the program goes along.

        Each call ended at one gateway, so what a gateway counted itself adds up to the whole.
        """
        self.is_restoring = True
        self.path_ends_s = {**path_ends_s, **self.path_ends_s}
        settled = {ended.end.key for ended in self.settled}
        self.sums = {}
        for call in () if copy is None else copy.calls:
            if call.end is not None and call.end.key not in settled:
                self._count(call.end)

    def _count(self, end: CallEnd) -> None:
        for name, value in call_sums(end).items():
            self.sums[name] = self.sums.get(name, 0) + value


def _settled(policy: Policy, ended: Ended, shared: Clock) -> dict[str, Any]:
    charge = encode_charge(policy, ended.end)
    if "path_end_s" in charge:
        charge["path_id"] = ended.start.call_id
    return {**charge, "entry": ended.entry(shared)}
