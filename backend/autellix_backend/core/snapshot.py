"""What an engine's queues look like at one moment, as the engine tells the gateway: one JSON datagram."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from autellix_backend.core.call import Call
from autellix_backend.core.errors import SnapshotError
from autellix_backend.core.machine import Machine
from autellix_backend.core.starvation import totals

__all__ = ["MAX_SNAPSHOT_BYTES", "CallStanding", "EngineSnapshot", "KvSwapTotals", "standing_of"]

MAX_SNAPSHOT_BYTES = 60 * 1024
"""The largest datagram, a margin below what the gateway reads at once."""

_PREFIX = b'{"snapshot":1,'
# A tenth of a millisecond: shorter numbers leave room for more calls.
_DIGITS = 4


class CallStanding(NamedTuple):
    """Where one call stands in an engine's queues; the choices of an `n > 1` call stand apart.

    A tuple, because an engine makes hundreds of them twice a second between two of its steps.
    """

    call_id: str
    program_id: str
    thread_id: str
    place: int
    """Its place in the order of all active calls, running ones included; 1 is the first."""
    level: int
    is_running: bool
    since_s: float
    """How long it has been running, or waiting, without a break."""
    wait_s: float
    """All its waiting."""
    service_s: float
    """The engine's time that it received itself."""
    inherited_service_s: float
    program_service_s: float
    """Its program's service and waiting of completed calls, as the engine has them."""
    program_wait_s: float
    ratio: float | None
    """Waiting over service, of program and call together, as anti-starvation counts them; None without any
    service."""
    promotion_s: float | None
    """Seconds of further waiting after which anti-starvation lifts it into the first level; None if it is in
    that already, is running, or promotions are off."""
    quantum_s: float | None
    """Service that is left to it in its level; None if the level has no bound."""
    kv_blocks: int
    preemptions: int
    promotions: int


class KvSwapTotals(NamedTuple):
    """What an engine has moved between its own and the host's memory since it started."""

    stored_bytes: int
    stored_transfers: int
    stored_s: float
    """Seconds of the copies, without queueing."""
    loaded_bytes: int
    loaded_transfers: int
    loaded_s: float
    hit_chunks: int
    """Chunks that were found in host memory and loaded."""
    refused_chunks: int
    """Chunks that were not stored: host memory was full of others in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """An engine's load, and its first calls in queue order."""

    step: int
    """Steps executed since the engine started."""
    mean_step_s: float | None
    """Mean duration of the steps since the snapshot before; None if there were none."""
    running: int
    waiting: int
    slots: int
    """How many calls the engine runs at once."""
    kv_used_blocks: int
    kv_total_blocks: int
    kv_block_tokens: int
    """Tokens that one KV block holds."""
    is_block_short: bool
    """Whether a waiting call was refused KV blocks in the latest step."""
    level_calls: tuple[int, ...]
    """The number of calls in each level, running ones included; empty without calls."""
    calls: tuple[CallStanding, ...]
    left_out: int = 0
    """Calls behind those in `calls`, for which the datagram had no room."""
    kv_swap: KvSwapTotals | None = None
    """None where the engine keeps no KV blocks in host memory by our connector."""

    def to_bytes(self, limit_bytes: int = MAX_SNAPSHOT_BYTES) -> bytes:
        """Return the snapshot as one datagram, with as many of its calls as have room in it."""
        rows = [[round(v, _DIGITS) if type(v) is float else v for v in call] for call in self.calls]
        while len(datagram := self._encode(rows)) > limit_bytes:
            # Ids differ in length: a margin saves most further rounds.
            del rows[int(0.95 * len(rows) * limit_bytes / len(datagram)) :]
        return datagram

    @staticmethod
    def is_one(datagram: bytes) -> bool:
        """Tell a snapshot from the account of a call."""
        return datagram.startswith(_PREFIX)

    @classmethod
    def from_bytes(cls, datagram: bytes) -> EngineSnapshot:
        """Read a snapshot; keys, and columns of calls, of a later version are ignored.

        Raises:
            SnapshotError: the datagram is not a JSON object with every field of its type.
        """
        try:
            message = json.loads(datagram)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(str(error)) from error
        if not isinstance(message, dict):
            raise SnapshotError(f"a JSON {type(message).__name__} instead of an object")
        head = {name: _checked(name, message.get(name), kinds) for name, kinds in _HEAD_KINDS.items()}
        levels = tuple(_checked("level_calls", count, (int,)) for count in head.pop("level_calls"))
        swap = message.get("kv_swap")
        return cls(
            **head,
            level_calls=levels,
            calls=_standings(message.get("calls")),
            kv_swap=None if swap is None else KvSwapTotals._make(_row("kv_swap", swap, _SWAP_KINDS)),
        )

    def _encode(self, rows: list[list[Any]]) -> bytes:
        head = {name: getattr(self, name) for name in _HEAD_KINDS}
        head["left_out"] += len(self.calls) - len(rows)
        message = {**head, "kv_swap": self.kv_swap, "calls": rows}
        return _PREFIX + json.dumps(message, separators=(",", ":"))[1:].encode()


def standing_of(
    machine: Machine, call: Call, now: float, *, place: int, call_id: str, kv_blocks: int = 0
) -> CallStanding:
    """Return where one of a machine's active calls stands.

    Args:
        machine: The machine that holds the call.
        call: The call.
        now: The time on the machine's clock.
        place: Its place in the machine's order, from 1.
        call_id: The id by which others know it.
        kv_blocks: The KV blocks that it holds.
    """
    program = machine.table[call.program_id]
    service_s, wait_s = totals(call, program, now)
    running_since_s = call.running_since_s if call.is_running else None
    lacks_s = machine.config.beta * service_s - wait_s
    can_be_promoted = call.level > 1 and not call.is_running and service_s > 0 and lacks_s < math.inf
    return CallStanding(
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
        promotion_s=max(0.0, lacks_s) if can_be_promoted else None,
        quantum_s=call.quantum_s if call.quantum_s < math.inf else None,
        kv_blocks=kv_blocks,
        preemptions=call.preemptions,
        promotions=call.promotions,
    )


_TYPES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    float | None: (float, int, type(None)),
    bool: (bool,),
    tuple[int, ...]: (list,),
}


def _columns(kind: type, *others: str) -> dict[str, tuple[type, ...]]:
    return {name: _TYPES[hint] for name, hint in get_type_hints(kind).items() if name not in others}


_HEAD_KINDS = _columns(EngineSnapshot, "calls", "kv_swap")
_CALL_KINDS = _columns(CallStanding)
_SWAP_KINDS = _columns(KvSwapTotals)


def _standings(rows: object) -> tuple[CallStanding, ...]:
    if not isinstance(rows, list):
        raise SnapshotError(f"calls is {rows!r}")
    return tuple(CallStanding._make(_row("a call", row, _CALL_KINDS)) for row in rows)


def _row(what: str, row: object, columns: dict[str, tuple[type, ...]]) -> list[Any]:
    """Return the values of these columns; a later version may have more."""
    if not isinstance(row, list) or len(row) < len(columns):
        raise SnapshotError(f"{what} is {row!r}")
    for (name, kinds), value in zip(columns.items(), row, strict=False):
        if type(value) not in kinds:
            raise SnapshotError(f"{name} of {what} is {value!r}")
    return row[: len(columns)]


def _checked(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    # By the exact type: bool is an int to isinstance, and a number to nobody else.
    if type(value) not in kinds:
        raise SnapshotError(f"{name} is {value!r}")
    return value
