"""How programs and calls are written in Redis: calls whole, as JSON; what adds up, as numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from autellix_backend.core.estimate import Hint
from autellix_backend.core.policies import Policy
from autellix_backend.stores.base import CallEnd, CallStart, CallView, ProgramView, view_call

Values = Mapping[str, str]
"""The fields of a program's hash."""
Clock = Callable[[float], float]
"""Turns a moment of the table's clock into one of the reader's."""


class _Start(msgspec.Struct, frozen=True):
    start_s: float
    call: CallStart


def encode_start(call: CallStart, start_s: float) -> str:
    """Return a running call as text."""
    return _to_text({"start_s": start_s, "call": _lean(call)})


def encode_end(end: CallEnd) -> str:
    """Return the end of a call as text."""
    return _to_text(_lean(end))


def encode_entry(call: CallStart, start_s: float, end: CallEnd, finish_s: float) -> str:
    """Return a finished call as an entry of the history; the scripts join the same three."""
    return f"{encode_start(call, start_s)}\n{finish_s!r}\n{encode_end(end)}"


def call_sums(end: CallEnd) -> dict[str, float]:
    """Return what a call adds to the numbers of its program, whatever the policy."""
    return {
        "finished": 1,
        "total_service_s": end.service_s,
        "prompt_tokens": end.prompt_tokens or 0,
        "cached_tokens": end.cached_tokens or 0,
        "output_tokens": end.output_tokens or 0,
    }


def charges(policy: Policy, end: CallEnd) -> list[float]:
    """Return what each request of a call adds to its program's service, or the path that it ends."""
    services_s = end.services_s or (0.0,)
    if policy.adds_service:
        return list(services_s)
    return [policy.complete(0.0, end.inherited_service_s, service_s) for service_s in services_s]


def merge_rule(policy: Policy) -> str:
    """Return the name that the scripts have for the policy's rule."""
    return "add" if policy.adds_service else "max"


def encode_charge(policy: Policy, end: CallEnd) -> dict[str, Any]:
    """Return what the scripts need to charge a call to its program."""
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
    """Read the answer of HGETALL."""
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def decode_view(
    program_id: str, record: Sequence[Sequence[bytes]], own: Clock, *, has_calls: bool
) -> ProgramView:
    """Read a program: its values, sessions, running calls and finished calls; `has_calls`: show the calls."""
    values = decode_values(record[0])
    running = [_decode_running(raw) for raw in sorted(record[2], key=_order)]
    moments = [float(values[name]) for name in ("created", "arrival", "completion") if name in values]
    calls: list[CallView] = []
    if has_calls:
        calls += [_decode_entry(raw, own) for raw in record[3]]
        calls += [view_call(start.call, own(start.start_s)) for start in running]
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
        calls=tuple(calls),
        flags=tuple(msgspec.json.decode(values.get("flags", "[]"))),
        intercepted_s=number(values, "intercepted_s"),
        is_ending="ended" in values,
        active_threads=len({start.call.thread_id for start in running}),
        total_service_s=number(values, "total_service_s"),
        prompt_tokens=int(number(values, "prompt_tokens")),
        cached_tokens=int(number(values, "cached_tokens")),
        output_tokens=int(number(values, "output_tokens")),
        last_interceptions=_interceptions(values.get("last_interceptions", "[]")),
    )


def decode_hint(raw: bytes) -> Hint:
    """Read a client's hint."""
    return msgspec.json.decode(raw, type=Hint)


def number(values: Values, name: str) -> float:
    """Return one of a program's numbers, which begin at zero."""
    return float(values.get(name, 0))


def _interceptions(text: str) -> tuple[tuple[str, float], ...]:
    return msgspec.json.decode(text, type=tuple[tuple[str, float], ...])


def _order(running: bytes) -> int:
    return int(running.partition(b"\n")[0])


def _decode_running(raw: bytes) -> _Start:
    return msgspec.json.decode(raw.partition(b"\n")[2], type=_Start)


def _decode_entry(raw: bytes, own: Clock) -> CallView:
    start_text, finish_text, end_text = raw.split(b"\n")
    start = msgspec.json.decode(start_text, type=_Start)
    end = msgspec.json.decode(end_text, type=CallEnd)
    return view_call(start.call, own(start.start_s), end, own(float(finish_text)))


def _lean(record: CallStart | CallEnd) -> dict[str, Any]:
    """Leave out what has its default: most fields of most calls."""
    return {
        field.name: value
        for field in dataclasses.fields(record)
        if (value := getattr(record, field.name)) != field.default
    }


def _to_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
