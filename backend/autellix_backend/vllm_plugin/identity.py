"""The identity of a request, read from its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.hints import Hints
from autellix_backend.core.priority import Priority
from autellix_backend.reports.request_ids import args_in
from autellix_wire import engine_args
from autellix_wire.ids import InvalidIdError, parse_parents

MAX_ID_LENGTH = 320
"""Room for an id of 256 characters and the name of its tenant before it."""
MAX_ENDED = 256
"""The most ended programs that one call may name."""
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
    """The spread of sizes of ended programs, as the gateway has measured it."""
    ended: tuple[str, ...] = ()
    """Other programs that have ended."""
    gateway: str = ""
    """The gateway that gets its report over the network; empty for the one on this machine."""

    @property
    def program_id(self) -> str:
        """The program of the call."""
        return self.arrival.program_id


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
        reader = _ARRIVAL_FACTS.get(name)
        if reader is not None and (fact := reader[1](value)) is not None:
            (hints if reader[0] in Hints.__struct_fields__ else facts)[reader[0]] = fact
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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A huge integer cannot become a float at all, so it is compared before it is converted.
    if not 0 <= value < 1e12 or math.isnan(value):
        return None
    return float(value)


_ARRIVAL_FACTS: dict[object, tuple[str, Callable[[object], Any]]] = {
    engine_args.THREAD: ("thread_id", _identifier),
    engine_args.TENANT: ("tenant", _identifier),
    engine_args.WEIGHT: ("weight", _weight),
    engine_args.SERVICE_S: ("inherited_s", _amount),
    engine_args.PROGRAM_SERVICE_S: ("service_s", _amount),
    engine_args.PARENTS: ("parents", _parents),
    engine_args.WAIT_S: ("wait_s", _amount),
    engine_args.EXPECTED_S: ("expected_s", _amount),
    engine_args.AGE_S: ("age_s", _amount),
    engine_args.WORK: ("work", _amount),
    engine_args.CLASS: ("class_name", _identifier),
    engine_args.GROUP: ("group", _identifier),
    engine_args.PRIORITY: ("priority", _priority),
    engine_args.RETURN_S: ("return_s", _amount),
}
"""The arguments that are facts of an arrival, each with their field and how they are read; None if absent."""
