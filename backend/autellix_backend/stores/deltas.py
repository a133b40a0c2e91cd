"""Changes to one program while the shared table is out of reach, merged into the table exactly once.

A program's service is a fold of its calls by the policy's rule, an addition or a maximum. Both are
commutative and associative and begin at zero. So the calls that one gateway settled alone fold from zero into
one number, which the table merges by the same rule later, in any order of the gateways' return.

- A call unknown to the table is folded. Its delta carries a version, so that the table ignores a delta that
  is sent again because its answer was lost.
- A call that the table has as running is charged on the condition that it still is: it does not matter
  whether the table received its end before the connection broke.
- A table that came back empty receives each gateway's last known sums. They only grow, so the greatest is the
  latest; deltas come on top.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import CallEnd, ProgramView, StoredCall
from autellix_backend.stores.memory import HISTORY_CALLS, MAX_FLAGS
from autellix_backend.stores.redis_records import (
    Clock,
    call_sums,
    encode_charge,
    encode_record,
    encode_start,
    merge_rule,
)


@dataclass(slots=True, kw_only=True)
class Delta:
    """The changes to one program; times are of the gateway's clock."""

    program_id: str
    created_s: float
    is_known: bool
    """Whether the program was ever in the table."""
    base: dict[str, float]
    """Its service and waiting before."""
    is_restoring: bool = False
    """Whether the table was lost and needs the base."""
    may_have_begun: bool = False
    """Whether the start of a call may have reached the table without an answer."""
    is_ended: bool = False
    service_s: float = 0.0
    wait_s: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    path_ends_s: dict[str, float] = field(default_factory=dict)
    folded: deque[StoredCall] = field(default_factory=lambda: deque(maxlen=HISTORY_CALLS))
    """The latest finished calls that are unknown to the table."""
    settled: list[StoredCall] = field(default_factory=list)
    """Finished calls that the table has as running."""
    event_s: float

    def fold(self, policy: Policy, call: StoredCall) -> None:
        """Add a finished call that is unknown to the table."""
        end = _end(call)
        for service_s in end.services_s or (0.0,):
            self.service_s = policy.complete(self.service_s, end.inherited_service_s, service_s)
        self.wait_s += end.table_wait_s
        self._count(end)
        charge = encode_charge(policy, end)
        if "path_end_s" in charge:
            self.path_ends_s[call.start.call_id] = charge["path_end_s"]
        self.folded.append(call)

    def message(self, policy: Policy, copy: ProgramView | None, shared: Clock) -> dict[str, Any]:
        """Return the delta as the script `absorb` reads it; `shared` converts times to the table's clock.

        `copy` is the gateway's copy of the program, None if it has ended there.
        """
        copy = copy or ProgramView(program_id=self.program_id, first_arrival_s=0.0, last_event_s=0.0)
        running = (call for call in copy.calls if call.end is None)
        return {
            "program": self.program_id,
            "is_known": self.is_known,
            "rule": merge_rule(policy),
            "services": [self.service_s],
            "wait_s": self.wait_s,
            "sums": self.sums,
            "path_ends_s": self.path_ends_s,
            "name": copy.name or None,
            "owner": copy.owner or None,
            "class_id": copy.class_id,
            "flags": copy.flags,
            "most_flags": MAX_FLAGS,
            "sessions": copy.session_ids,
            "entries": [encode_record(call, shared) for call in self.folded],
            "most_entries": HISTORY_CALLS,
            "running": {call.start.key: encode_start(call.start, shared(call.start_s)) for call in running},
            "settled": [_settled(policy, call, shared) for call in self.settled],
            "is_ended": self.is_ended,
            "created": shared(self.created_s),
            "event": shared(self.event_s),
            "base": self.base if self.is_restoring else None,
        }

    def restore(self, copy: ProgramView | None, path_ends_s: Mapping[str, float]) -> None:
        """Turn this into a delta for a table that was lost, with all that the gateway knows of the program.

        Each call ended at one gateway, so the counts of all gateways add up to the whole.
        """
        self.is_restoring = True
        self.path_ends_s = {**path_ends_s, **self.path_ends_s}
        settled = {call.start.key for call in self.settled}
        self.sums = {}
        for call in () if copy is None else copy.calls:
            if call.end is not None and call.end.key not in settled:
                self._count(call.end)

    def _count(self, end: CallEnd) -> None:
        for name, value in call_sums(end).items():
            self.sums[name] = self.sums.get(name, 0) + value


def _end(call: StoredCall) -> CallEnd:
    assert call.end is not None
    return call.end


def _settled(policy: Policy, call: StoredCall, shared: Clock) -> dict[str, Any]:
    charge = encode_charge(policy, _end(call))
    if "path_end_s" in charge:
        charge["path_id"] = call.start.call_id
    return {**charge, "entry": encode_record(call, shared)}
