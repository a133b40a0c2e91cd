"""The snapshot of an engine's queues that it sends to the gateway: one JSON message."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.call import Call
from autellix_backend.core.machine import Machine
from autellix_backend.core.starvation import totals
from autellix_backend.core.table import Program
from autellix_backend.reports.decoding import decode
from autellix_backend.reports.link import Rank

MAX_SNAPSHOT_BYTES = 60 * 1024
"""The largest message: the gateway reads one in milliseconds."""
MAX_PRESENT_BYTES = 24 * 1024
"""What the ids of programs may take that are listed without their calls."""
MAX_IDLE_IDS = 128
"""The most programs without a call that are listed: their ids leave room for as many calls."""

_TAG_FIELD, _TAG = "snapshot", 1
_PREFIX = b'{"snapshot":1,'
# A tenth of a millisecond: shorter numbers leave room for more calls.
_DIGITS = 4


class CallSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call in an engine's queues; the choices of an `n > 1` call are listed one by one."""

    call_id: str
    program_id: str
    thread_id: str
    place: int
    """Its place in the order of all active calls, running ones included, from 1. Calls that are not admitted
    follow those that are."""
    level: int
    is_running: bool
    since_s: float
    """How long it has been running or waiting, since it last got or lost a slot."""
    wait_s: float
    """All its waiting."""
    service_s: float
    """Its own service."""
    inherited_service_s: float
    program_service_s: float
    """The service and waiting of its program's completed calls, as the engine has them."""
    program_wait_s: float
    ratio: float | None
    """Waiting over service of program and call, as anti-starvation counts them; None without service."""
    promotion_s: float | None
    """Seconds of further waiting after which it is promoted; None in the first level, while it is running, or
    where promotions are off."""
    quantum_s: float | None
    """The rest of its quantum; None if unbounded."""
    kv_blocks: int
    """The KV blocks that it holds; one that calls of its program share counts for the first of them only."""
    preemptions: int
    promotions: int
    is_admitted: bool = True
    """Whether its program is active, or admission is off; a running call stays admitted."""
    context_tokens: int | None = None
    """KV memory that its program needs, a common prefix included; None where admission is off."""
    inactive_place: int | None = None
    """Its program's place among those that wait for activation, from 1; None if its program is active."""
    counted_age_s: float | None = None
    """How long ago its program counts as having come; None under policies that boost no programs."""
    is_decoding: bool | None = None
    """Whether its last step decoded, and did not prefill; None while it waits, or from an engine of an
    earlier version."""
    is_parked: bool = False
    """Whether its program is inactive, and host memory keeps its context."""


class AdmissionSnapshot(NamedTuple):
    """The working set of an engine."""

    active_programs: int
    inactive_programs: int
    """Programs with calls that wait for activation."""
    working_set_tokens: int
    """The contexts of the active programs, common prefixes counted once."""
    capacity_tokens: int
    """KV tokens that active programs may fill."""


class DemandSnapshot(NamedTuple):
    """The demand for an engine's memory beyond its active programs, for the balancer."""

    inactive_tokens: int
    """The memory that the programs which wait for activation would add."""
    inactive_calls: int
    """Their calls."""
    between_ends_s: float
    """The mean time between two ends of programs; 0 if unknown."""
    idle: tuple[str, ...] | None
    """The active and parked programs without a call; None if there are too many to list."""


class ParkedSnapshot(NamedTuple):
    """The programs whose contexts host memory keeps, for the balancer."""

    programs: int
    tokens: int
    """Their contexts."""
    room_tokens: int
    """What active and parked programs may fill before another has to wait."""
    other_tokens: int
    """The memory that the programs which wait for activation, and are not parked, would add."""
    other_calls: int
    """The calls of those."""


class PresentPrograms(NamedTuple):
    """The programs with calls, for the balancer."""

    inactive: tuple[str, ...]
    """Programs that wait for activation and are not parked."""
    others: tuple[str, ...]
    is_complete: bool = True
    """Whether these are all."""


class BoostSnapshot(NamedTuple):
    """What the boosted order of programs follows; the first two are those of the tenant with the most."""

    strength_s: float
    spread: float
    """The standard deviation of ln(work) of ended programs."""
    response_s: float
    """The mean response time of programs."""


class KvOffloadTotals(NamedTuple):
    """KV blocks that an engine has stored in host memory and loaded back since it started."""

    stored_bytes: int
    stored_transfers: int
    stored_s: float
    """Seconds of the copies, without queueing."""
    loaded_bytes: int
    loaded_transfers: int
    loaded_s: float
    hit_chunks: int
    """Chunks found in host memory and loaded."""
    refused_chunks: int
    """Chunks not stored, because host memory was full of others in use."""


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag_field=_TAG_FIELD, tag=_TAG):
    """An engine's load, and its first calls in queue order.

    Each data-parallel rank of an engine has queues of its own, and sends snapshots of its own.
    """

    rank: Rank = 0
    """The data-parallel rank, from 0."""
    step: int
    """Steps executed since the engine started."""
    mean_step_s: float | None
    """Mean duration of the steps since the last snapshot; None without steps."""
    running: int
    waiting: int
    slots: int
    """The calls that the engine runs at once."""
    kv_used_blocks: int
    kv_total_blocks: int
    kv_block_tokens: int
    """Tokens of whole contexts that one KV block is worth."""
    is_block_short: bool
    """Whether a waiting call was refused KV blocks in the latest step."""
    level_calls: tuple[int, ...]
    """The number of calls in each level, running ones included; empty without calls."""
    calls: tuple[CallSnapshot, ...]
    left_out: int = 0
    """Calls behind those in `calls`, for which the message has no room."""
    present: PresentPrograms | None = None
    """None where `calls` are those of this moment; else the snapshot before it has the calls."""
    kv_offload: KvOffloadTotals | None = None
    """None where the engine does not offload KV blocks by our connector."""
    admission: AdmissionSnapshot | None = None
    """None where every program may run."""
    demand: DemandSnapshot | None = None
    """None where every program may run, or from an engine of an earlier version."""
    spare_tokens: int = 0
    """The memory of active and parked programs without a call that would make way for any that waits."""
    parked: ParkedSnapshot | None = None
    """None without host memory, or from an engine of an earlier version."""
    boost: BoostSnapshot | None = None
    """None under policies that boost no programs."""
    hold_s: float | None = None
    """The time for which an idle program is kept whose gaps are unknown; None where every program may run."""

    def with_calls_of(self, before: EngineSnapshot | None) -> EngineSnapshot:
        """Return the snapshot with the calls of the one before it, if it has none of its own."""
        if self.present is None or before is None:
            return self
        return msgspec.structs.replace(self, calls=before.calls, left_out=before.left_out)

    @property
    def programs(self) -> PresentPrograms:
        """The programs with calls."""
        if self.present is not None:
            return self.present
        is_inactive = {
            call.program_id: call.inactive_place is not None and not call.is_parked for call in self.calls
        }
        inactive = tuple(program_id for program_id, each in is_inactive.items() if each)
        others = tuple(program_id for program_id, each in is_inactive.items() if not each)
        return PresentPrograms(inactive, others, self.left_out == 0)

    def memory(self) -> MemoryReport | None:
        """Return what the balancer needs of it; None where every program may run."""
        admission, demand = self.admission, self.demand
        if admission is None or demand is None:
            return None
        parked = self.parked or ParkedSnapshot(
            0, 0, admission.capacity_tokens, demand.inactive_tokens, demand.inactive_calls
        )
        inactive, others, is_complete = self.programs
        return MemoryReport(
            capacity_tokens=parked.room_tokens,
            active_tokens=admission.working_set_tokens + parked.tokens,
            active_programs=admission.active_programs + parked.programs,
            spare_tokens=self.spare_tokens,
            inactive_tokens=parked.other_tokens,
            inactive_calls=parked.other_calls,
            between_ends_s=demand.between_ends_s,
            known=frozenset(inactive).union(others, demand.idle or ()),
            inactive=frozenset(inactive),
            is_complete=is_complete and demand.idle is not None,
        )

    def to_bytes(self, limit_bytes: int = MAX_SNAPSHOT_BYTES) -> bytes:
        """Return the snapshot as one message, with as many of its calls as fit."""
        calls = [CallSnapshot(*map(_rounded, msgspec.structs.astuple(call))) for call in self.calls]
        while len(message := self._encode(calls)) > limit_bytes:
            # Ids differ in length: a margin saves most further rounds.
            del calls[int(0.95 * len(calls) * limit_bytes / len(message)) :]
        return message

    @staticmethod
    def is_one(message: bytes) -> bool:
        """Return whether a message is a snapshot, and not the report of a call."""
        return message.startswith(_PREFIX)

    @classmethod
    def from_bytes(cls, message: bytes) -> EngineSnapshot:
        """Read a snapshot; keys, and columns of calls, of a later version are ignored.

        Raises:
            ReportError: the message is not a JSON object with every field of its type.
        """
        return decode(_decoder, message, "an engine snapshot")

    def _encode(self, calls: list[CallSnapshot]) -> bytes:
        left_out = self.left_out + len(self.calls) - len(calls)
        return msgspec.json.encode(msgspec.structs.replace(self, calls=tuple(calls), left_out=left_out))


_decoder = msgspec.json.Decoder(EngineSnapshot)


def _rounded(value: Any) -> Any:
    return round(value, _DIGITS) if type(value) is float else value


def admission_of(machine: Machine) -> AdmissionSnapshot | None:
    """Return the state of a machine's admission, None if it admits every program."""
    memory = machine.admission.memory
    if memory is None:
        return None
    return AdmissionSnapshot(
        active_programs=len(memory.active.contexts),
        inactive_programs=len(memory.inactive),
        working_set_tokens=memory.active.tokens,
        capacity_tokens=int(memory.capacity_tokens),
    )


def demand_of(machine: Machine, report: MemoryReport | None) -> DemandSnapshot | None:
    """Return the demand for a machine's memory by its report, None if it admits every program."""
    memory = machine.admission.memory
    if memory is None or report is None:
        return None
    present = (*memory.active.contexts.items(), *memory.parked.contexts.items())
    idle = [program_id for program_id, context in present if not context.calls]
    inactive = memory.inactive.contexts.values()
    return DemandSnapshot(
        inactive_tokens=memory.active.added_by(inactive),
        inactive_calls=sum(len(context.calls) for context in inactive),
        between_ends_s=round(report.between_ends_s, _DIGITS),
        idle=tuple(idle) if len(idle) <= MAX_IDLE_IDS else None,
    )


def parked_of(machine: Machine, report: MemoryReport | None) -> ParkedSnapshot | None:
    """Return the programs whose contexts a machine's host memory keeps, None without any host memory."""
    memory = machine.admission.memory
    if memory is None or report is None or not memory.host_tokens:
        return None
    return ParkedSnapshot(
        programs=len(memory.parked.contexts),
        tokens=memory.parked.tokens,
        room_tokens=int(memory.room_tokens),
        other_tokens=report.inactive_tokens,
        other_calls=report.inactive_calls,
    )


def present_of(machine: Machine) -> PresentPrograms:
    """Return the programs with calls, as far as a message has room for them; none without admission."""
    memory = machine.admission.memory
    if memory is None:
        return PresentPrograms((), ())
    contexts = [*memory.inactive.contexts.values(), *memory.active.contexts.values()]
    inactive: list[str] = []
    others: list[str] = []
    room = MAX_PRESENT_BYTES
    for context in contexts:
        if context.calls:
            is_inactive = not (context.is_active or context.is_parked)
            program_id = context.program.program_id
            room -= len(program_id) + 3
            if room < 0:
                break
            (inactive if is_inactive else others).append(program_id)
    return PresentPrograms(tuple(inactive), tuple(others), room >= 0)


def boost_of(machine: Machine) -> BoostSnapshot | None:
    """Return what a machine's boost follows, None if its policy boosts no programs."""
    if not machine.policy.boosts:
        return None
    statistics = machine.table.statistics
    return BoostSnapshot(
        strength_s=round(machine.boost.strength_s, _DIGITS),
        spread=round(statistics.spread, _DIGITS),
        response_s=round(statistics.response_s, _DIGITS),
    )


def snapshot_of(
    machine: Machine,
    call: Call,
    now: float,
    *,
    place: int,
    call_id: str,
    kv_blocks: int = 0,
    inactive_place: int | None = None,
    is_decoding: bool | None = None,
) -> CallSnapshot:
    """Return the snapshot of one of a machine's active calls.

    Args:
        machine: The machine that holds the call.
        call: The call.
        now: The time on the machine's clock.
        place: Its place in the machine's order, from 1.
        call_id: The id by which the gateway knows it.
        kv_blocks: The KV blocks that it holds, without those counted for an earlier call of its program.
        inactive_place: The place of its program among those that wait for activation.
        is_decoding: Whether its last step decoded, if it is running.
    """
    program = machine.table[call.program_id]
    memory = machine.admission.memory
    context = None if memory is None else memory.find(call.program_id)
    service_s, wait_s = totals(call, program, now)
    running_since_s = call.running_since_s if call.is_running else None
    missing_s = machine.config.beta * service_s - wait_s
    can_be_promoted = call.level > 1 and not call.is_running and service_s > 0 and missing_s < math.inf
    return CallSnapshot(
        call_id=call_id,
        program_id=call.program_id,
        thread_id=call.thread_id,
        place=place,
        level=call.level,
        is_running=call.is_running,
        since_s=now - (call.waiting_since_s if running_since_s is None else running_since_s),
        wait_s=call.wait_at(now),
        service_s=call.service_s,
        inherited_service_s=call.inherited_service_s,
        program_service_s=program.service_s,
        program_wait_s=program.wait_s,
        ratio=wait_s / service_s if service_s > 0 else None,
        promotion_s=max(0.0, missing_s) if can_be_promoted else None,
        quantum_s=call.quantum_s if call.quantum_s < math.inf else None,
        kv_blocks=kv_blocks,
        preemptions=call.preemptions,
        promotions=call.promotions,
        is_admitted=call.is_admitted,
        context_tokens=None if context is None else context.needed_tokens,
        inactive_place=inactive_place,
        counted_age_s=_counted_age_s(machine, call, program, now),
        is_decoding=is_decoding,
        is_parked=context is not None and context.is_parked,
    )


def _counted_age_s(machine: Machine, call: Call, program: Program, now: float) -> float | None:
    if not machine.policy.boosts:
        return None
    return now - (machine.boost.key_s(program) if call.group is None else call.group.key)
