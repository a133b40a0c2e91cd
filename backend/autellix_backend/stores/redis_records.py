"""The encoding of programs and calls in Redis: whole calls as JSON, sums as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import (
    Adoption,
    AnswerSource,
    CallEnd,
    CallStart,
    ImplicitCall,
    ProgramView,
    StoredCall,
)
from autellix_wire.flags import IMPLICIT

Clock = Callable[[float], float]
"""Converts times from one clock to another."""


class KnownProgram(NamedTuple):
    """What the script `begin` returns of a program; None where it has no such value."""

    service_s: bytes | None
    wait_s: bytes | None
    finished_calls: bytes | None
    prompt_tokens: bytes | None
    cached_tokens: bytes | None
    output_tokens: bytes | None
    created_s: bytes | None


def encode_argument(fields: Mapping[str, object]) -> bytes:
    """Return a script's argument; fields that are None are left out."""
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def encode_start(call: CallStart, start_s: float) -> str:
    """Return a running call as text."""
    return to_text(StoredCall(start=call, start_s=start_s))


def encode_origin(source: AnswerSource) -> str:
    """Return the engine of an answer, with its call if that was implicit; releases before read the engine."""
    return source.engine if source.implicit is None else f"{source.engine}\t{to_text(source.implicit)}"


def decode_source(value: bytes) -> AnswerSource:
    """Decode where an answer came from: the origin, and its program."""
    origin, _, program_id = value.decode().partition("\n")
    engine, _, call = origin.partition("\t")
    return AnswerSource(program_id, engine, msgspec.json.decode(call, type=ImplicitCall) if call else None)


def encode_adoption(adoption: Adoption, program_id: str, rule: str) -> dict[str, str]:
    """Return what the script `begin` needs to move a call to a program, as the table has it in its texts."""
    return {
        "program": adoption.program_id,
        "path_id": adoption.call_id,
        "call": f'"call_id":{to_text(adoption.call_id)}',
        "old": f'"program_id":{to_text(adoption.program_id)}',
        "new": f'"program_id":{to_text(program_id)}',
        "flag": to_text(IMPLICIT),
        "rule": rule,
    }


def call_sums(end: CallEnd) -> dict[str, float]:
    """Return what a call adds to its program's counts, under any policy."""
    return {
        "finished_calls": 1,
        "total_service_s": end.service_s,
        "prompt_tokens": end.prompt_tokens or 0,
        "cached_tokens": end.cached_tokens or 0,
        "output_tokens": end.output_tokens or 0,
    }


def merge_rule(policy: Policy) -> str:
    """Return the scripts' name of the policy's rule."""
    return "add" if policy.adds_service else "max"


def encode_charge(policy: Policy, end: CallEnd) -> dict[str, Any]:
    """Return the part of a script's argument that charges a call to its program."""
    services_s = list(end.services_s or (0.0,))
    path_end_s = end.inherited_service_s + services_s[-1]
    if not policy.adds_service:
        services_s = [policy.complete(0.0, end.inherited_service_s, service_s) for service_s in services_s]
    return {
        "key": end.key,
        "services": services_s,
        "wait_s": end.table_wait_s,
        "sums": call_sums(end),
        **({"path_end_s": path_end_s} if policy.reads_parents else {}),
    }


def decode_view(
    program_id: str, record: Sequence[Sequence[bytes]], own: Clock, *, has_calls: bool
) -> ProgramView:
    """Decode a program: its values, sessions, running calls and finished calls."""
    words = [word.decode() for word in record[0]]
    values: dict[str, str] = dict(zip(words[::2], words[1::2], strict=True))
    running = [_decode_start(raw.partition(b"\n")[2], own) for raw in sorted(record[2], key=_order)]
    moments = [float(values[name]) for name in ("created", "arrival", "completion") if name in values]
    fields = {
        # Its sums have the names of the record's fields.
        **values,
        "program_id": program_id,
        "session_ids": [session.decode() for session in record[1]],
        "active_calls": len(running),
        "active_threads": len({call.start.thread_id for call in running}),
        "first_arrival_s": own(float(values["created"])),
        "last_event_s": own(max(moments)),
        "flags": msgspec.json.decode(values.get("flags", "[]")),
        "last_interceptions": msgspec.json.decode(values.get("last_interceptions", "[]")),
        "is_ending": "ended" in values,
        "calls": [*(_decode_finished(raw, own) for raw in record[3]), *running] if has_calls else [],
    }
    return msgspec.convert(fields, ProgramView, strict=False)


def _order(running: bytes) -> int:
    return int(running.partition(b"\n")[0])


def _decode_start(raw: bytes, own: Clock) -> StoredCall:
    call = msgspec.json.decode(raw, type=StoredCall)
    return replace(call, start_s=own(call.start_s))


def _decode_finished(raw: bytes, own: Clock) -> StoredCall:
    start, finish, end = raw.split(b"\n")
    call = _decode_start(start, own)
    return replace(call, end=msgspec.json.decode(end, type=CallEnd), finish_s=own(float(finish)))


def to_text(value: object) -> str:
    """Encode a value as JSON."""
    return msgspec.json.encode(value).decode()
