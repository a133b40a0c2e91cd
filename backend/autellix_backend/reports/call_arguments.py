"""What an engine's scheduler learns of a call: one record, as the arguments of the request in `vllm_xargs`.

The gateway writes a `CallIdentity` and the plugin reads it. Each fact is an argument by itself, which the
other side may not know: so gateways and engines of several releases work together, and clients of an engine
without a gateway can set some by hand. Hints are written and read by the fields of `core.hints.Hints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import msgspec.structs

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.priority import Priority
from autellix_backend.reports.request_ids import args_in
from autellix_wire import engine_args
from autellix_wire.ids import InvalidIdError, format_parents, parse_parents

Arguments = dict[str, str | float]

MAX_ID_LENGTH = 320
"""Room for an id of 256 characters and the name of its tenant before it."""
MAX_ENDED = 256
"""The most ended programs that one call may name."""
_AMOUNT_LIMIT = 1e12
_WEIGHT_LIMIT = 1e6
_PRIORITIES = frozenset(Priority)
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
_ended_ids: msgspec.json.Decoder[tuple[str, ...]] = msgspec.json.Decoder(
    Annotated[tuple[_Id, ...], msgspec.Meta(max_length=MAX_ENDED)]
)


class CallIdentity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request says of its call and its program."""

    call_id: str
    """The caller's: several requests may have it."""
    arrival: Arrival
    """The call's arrival in the machine, with the program's totals where the gateway keeps them."""
    is_last: bool = False
    """Whether the program ends with this call."""
    spread: float | None = None
    """The spread of the sizes of ended programs, as the gateway has measured it."""
    ended: tuple[str, ...] = ()
    """Other programs that have ended."""
    gateway: str = ""
    """The gateway that gets its report over the network; empty for the one on this machine."""

    @property
    def program_id(self) -> str:
        """The program of the call."""
        return self.arrival.program_id


def call_arguments(identity: CallIdentity) -> Arguments:
    """Return the arguments for an identity; without parents, where a gateway has looked them up.

    What is unknown, or the default, is absent.
    """
    arrival = identity.arrival
    args = _totals(arrival)
    args[engine_args.CALL] = identity.call_id
    if arrival.tenant:
        args[engine_args.TENANT] = arrival.tenant
        args[engine_args.WEIGHT] = arrival.weight
    if arrival.hints is not NO_HINTS:
        for name, value in msgspec.to_builtins(arrival.hints).items():
            args[_HINT_NAMES[name]] = value
    if arrival.parents is not None:
        args[engine_args.PARENTS] = format_parents(arrival.parents)
    if not arrival.is_identified:
        args[engine_args.UNIDENTIFIED] = 1
    if identity.is_last:
        args[engine_args.LAST] = 1
    if identity.spread is not None:
        args[engine_args.SPREAD] = identity.spread
    if identity.ended:
        args[engine_args.ENDED] = msgspec.json.encode(identity.ended).decode()
    if identity.gateway:
        args[engine_args.GATEWAY] = identity.gateway
    return args


def _totals(arrival: Arrival) -> Arguments:
    """Return the arguments for the program, and its totals as far as they are known."""
    args: Arguments = {engine_args.PROGRAM: arrival.program_id, engine_args.THREAD: arrival.thread_id}
    if (inherited_s := arrival.inherited_s) is not None:
        args[engine_args.SERVICE_S] = inherited_s
    if (service_s := arrival.service_s) is not None and service_s != inherited_s:
        args[engine_args.PROGRAM_SERVICE_S] = service_s
    if arrival.wait_s is not None:
        args[engine_args.WAIT_S] = arrival.wait_s
    if arrival.age_s is not None:
        args[engine_args.AGE_S] = arrival.age_s
    if arrival.work is not None:
        args[engine_args.WORK] = arrival.work
    return args


def read_identity(request_id: str, extra_args: object, session_id: object) -> CallIdentity:
    """Read the identity of a request; a value of the wrong kind counts as absent, never as an error.

    A request that names no program belongs to its session, else it is a program of its own, which nothing
    identified.
    """
    args: Mapping[object, object] = extra_args if isinstance(extra_args, Mapping) else {}
    if engine_args.PROGRAM not in args:
        args = {**args_in(request_id), **args}
    facts: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    # Most requests have few of them.
    for name, value in args.items():
        row = _FACTS.get(name)
        if row is None:
            continue
        field, read, is_hint = row
        if (fact := read(value)) is not None:
            (hints if is_hint else facts)[field] = fact
    if hints:
        facts["hints"] = Hints(**hints)
    facts.setdefault("service_s", facts.get("inherited_s"))
    named = _identifier(args.get(engine_args.PROGRAM)) or _identifier(session_id)
    if named is None or args.get(engine_args.UNIDENTIFIED) == 1:
        facts["is_identified"] = False
    return CallIdentity(
        call_id=_identifier(args.get(engine_args.CALL)) or request_id,
        arrival=Arrival(request_id, named or request_id, **facts),
        is_last=args.get(engine_args.LAST) == 1,
        spread=_amount(args.get(engine_args.SPREAD)),
        ended=_ended(args.get(engine_args.ENDED)),
        gateway=_identifier(args.get(engine_args.GATEWAY)) or "",
    )


def _identifier(value: object) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and (value.isascii() or _is_text(value)):
        return value
    return None


def _is_text(value: str) -> bool:
    """Whether a string can be sent: JSON may hold halves of surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ended(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        return ()
    try:
        return _ended_ids.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()


def _parents(value: object) -> tuple[str, ...] | None:
    try:
        return parse_parents(value, engine_args.PARENTS) if isinstance(value, str) else None
    except InvalidIdError:
        return None


def _priority(value: object) -> Priority | None:
    # Not by a look into the values, which would hash what a client sends.
    return Priority(value) if isinstance(value, str) and value in _PRIORITIES else None


def _weight(value: object) -> float | None:
    weight = _amount(value)
    return weight if weight is not None and 1 / _WEIGHT_LIMIT <= weight <= _WEIGHT_LIMIT else None


def _amount(value: object) -> float | None:
    if isinstance(value, float):
        return value if 0 <= value < _AMOUNT_LIMIT else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    # A huge integer cannot become a float at all, so it is compared before it is converted.
    return float(value) if 0 <= value < _AMOUNT_LIMIT else None


class _Fact(NamedTuple):
    """How an argument becomes a fact of an arrival, or a hint."""

    field: str
    read: Callable[[object], Any]
    """Returns the fact; None where that is absent."""
    is_hint: bool = False


_HINT_NAMES = {
    hint.encode_name: engine_args.PREFIX + hint.encode_name for hint in msgspec.structs.fields(Hints)
}
"""The arguments of the hints."""
_HINT_READERS: dict[Any, Callable[[object], Any]] = {
    str: _identifier,
    float | None: _amount,
    Priority: _priority,
}
"""Readers by the type of the hint."""
_FACTS: dict[object, _Fact] = {
    engine_args.THREAD: _Fact("thread_id", _identifier),
    engine_args.TENANT: _Fact("tenant", _identifier),
    engine_args.WEIGHT: _Fact("weight", _weight),
    engine_args.PROGRAM_SERVICE_S: _Fact("service_s", _amount),
    engine_args.PARENTS: _Fact("parents", _parents),
    engine_args.SERVICE_S: _Fact("inherited_s", _amount),
    engine_args.WAIT_S: _Fact("wait_s", _amount),
    engine_args.AGE_S: _Fact("age_s", _amount),
    engine_args.WORK: _Fact("work", _amount),
    **{
        _HINT_NAMES[hint.encode_name]: _Fact(hint.name, _HINT_READERS[hint.type], is_hint=True)
        for hint in msgspec.structs.fields(Hints)
    },
}
"""Readers by the name of the argument."""
