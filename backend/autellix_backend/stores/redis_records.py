"""The encoding of programs and calls in Redis: whole calls as JSON, sums as numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from autellix_backend.core.estimate import Hint
from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import CallEnd, CallStart, ProgramView, StoredCall

Values = Mapping[str, str]
"""The fields of a program's hash."""
Clock = Callable[[float], float]
"""Converts times from one clock to another."""


def encode_start(call: CallStart, start_s: float) -> str:
    """Return a running call as text."""
    return to_text({"start_s": start_s, "start": _lean(call)})


def encode_end(end: CallEnd) -> str:
    """Return the end of a call as text."""
    return to_text(_lean(end))


def encode_record(call: StoredCall, shared: Clock) -> str:
    """Return a finished call as an entry of the history; the scripts join the same three lines."""
    assert call.end is not None and call.finish_s is not None
    start = encode_start(call.start, shared(call.start_s))
    return f"{start}\n{shared(call.finish_s)!r}\n{encode_end(call.end)}"


def call_sums(end: CallEnd) -> dict[str, float]:
    """Return what a call adds to its program's counts, whatever the policy."""
    return {
        "finished": 1,
        "total_service_s": end.service_s,
        "prompt_tokens": end.prompt_tokens or 0,
        "cached_tokens": end.cached_tokens or 0,
        "output_tokens": end.output_tokens or 0,
    }


def charges(policy: Policy, end: CallEnd) -> list[float]:
    """Return the service that each request of a call adds to its program, or the path that it ends."""
    services_s = end.services_s or (0.0,)
    if policy.adds_service:
        return list(services_s)
    return [policy.complete(0.0, end.inherited_service_s, service_s) for service_s in services_s]


def merge_rule(policy: Policy) -> str:
    """Return the scripts' name of the policy's rule."""
    return "add" if policy.adds_service else "max"


def encode_charge(policy: Policy, end: CallEnd) -> dict[str, Any]:
    """Return the part of a script's argument that charges a call to its program."""
    charge: dict[str, Any] = {
        "key": end.key,
        "services": charges(policy, end),
        "wait_s": end.table_wait_s,
        "sums": call_sums(end),
    }
    if policy.reads_parents:
        last_s = (end.services_s or (0.0,))[-1]
        charge["path_end_s"] = end.inherited_service_s + last_s
    return charge


def decode_values(flat: Sequence[bytes]) -> Values:
    """Decode the answer of HGETALL."""
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def decode_view(
    program_id: str, record: Sequence[Sequence[bytes]], own: Clock, *, has_calls: bool
) -> ProgramView:
    """Decode a program: its values, sessions, running calls and finished calls."""
    values = decode_values(record[0])
    running = [_decode_start(raw.partition(b"\n")[2], own) for raw in sorted(record[2], key=_order)]
    moments = [float(values[name]) for name in ("created", "arrival", "completion") if name in values]
    calls = (*(_decode_finished(raw, own) for raw in record[3]), *running) if has_calls else ()
    return ProgramView(
        program_id=program_id,
        name=values.get("name"),
        session_ids=tuple(session.decode() for session in record[1]),
        service_s=number(values, "service_s"),
        wait_s=number(values, "wait_s"),
        active_calls=len(running),
        finished_calls=int(number(values, "finished")),
        first_arrival_s=own(float(values["created"])),
        last_event_s=own(max(moments)),
        calls=calls,
        flags=tuple(msgspec.json.decode(values.get("flags", "[]"))),
        intercepted_s=number(values, "intercepted_s"),
        is_ending="ended" in values,
        active_threads=len({call.start.thread_id for call in running}),
        total_service_s=number(values, "total_service_s"),
        prompt_tokens=int(number(values, "prompt_tokens")),
        cached_tokens=int(number(values, "cached_tokens")),
        output_tokens=int(number(values, "output_tokens")),
        last_interceptions=_interceptions(values.get("last_interceptions", "[]")),
    )


def decode_hint(raw: bytes) -> Hint:
    """Decode a client's hint."""
    return msgspec.json.decode(raw, type=Hint)


def number(values: Values, name: str) -> float:
    """Return one of a program's numbers; a missing one is zero."""
    return float(values.get(name, 0))


def _interceptions(text: str) -> tuple[tuple[str, float], ...]:
    return msgspec.json.decode(text, type=tuple[tuple[str, float], ...])


def _order(running: bytes) -> int:
    return int(running.partition(b"\n")[0])


def _decode_start(raw: bytes, own: Clock) -> StoredCall:
    call = msgspec.json.decode(raw, type=StoredCall)
    return dataclasses.replace(call, start_s=own(call.start_s))


def _decode_finished(raw: bytes, own: Clock) -> StoredCall:
    start, finish, end = raw.split(b"\n")
    return dataclasses.replace(
        _decode_start(start, own),
        end=msgspec.json.decode(end, type=CallEnd),
        finish_s=own(float(finish)),
    )


def _lean(record: CallStart | CallEnd) -> dict[str, Any]:
    """Return the fields that differ from their defaults: few of most calls."""
    return {
        field.name: value
        for field in dataclasses.fields(record)
        if (value := getattr(record, field.name)) != field.default
    }


def to_text(value: object) -> str:
    """Encode a value as JSON."""
    return msgspec.json.encode(value).decode()
