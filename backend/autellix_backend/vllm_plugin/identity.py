"""The identity of a request, read from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.priority import Priority
from autellix_backend.reports.request_ids import args_in
from autellix_wire import engine_args
from autellix_wire.ids import InvalidIdError, parse_parents

MAX_ID_LENGTH = 320
"""Room for an id of 256 characters and the name of its tenant before it."""
MAX_ENDED = 256
"""The most ended programs that one call may name."""
DEFAULT_THREAD = "0"
DEFAULT_WEIGHT = 1.0
_WEIGHT_LIMIT = 1e6
_PRIORITIES = frozenset(Priority)
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
_ended_ids: msgspec.json.Decoder[tuple[str, ...]] = msgspec.json.Decoder(
    Annotated[tuple[_Id, ...], msgspec.Meta(max_length=MAX_ENDED)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdentity:
    """What a request says of its call and its program."""

    call_id: str
    """The caller's: several requests may have it."""
    arrival: Arrival
    """The call's arrival in the machine, with the program's totals where the gateway keeps them."""
    is_last: bool = False
    """Whether the program ends with this call."""
    spread: float | None = None
    """Of the sizes of ended programs, as the gateway has measured it."""
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

    A request that names no program belongs to its session, else it is a program of its own.
    """
    args: Mapping[object, object] = extra_args if isinstance(extra_args, Mapping) else {}
    if engine_args.PROGRAM not in args:
        args = {**args_in(request_id), **args}
    service_s = _amount(args.get(engine_args.SERVICE_S))
    program_service_s = _amount(args.get(engine_args.PROGRAM_SERVICE_S))
    arrival = Arrival(
        request_id,
        _identifier(args.get(engine_args.PROGRAM)) or _identifier(session_id) or request_id,
        thread_id=_identifier(args.get(engine_args.THREAD)) or DEFAULT_THREAD,
        tenant=_identifier(args.get(engine_args.TENANT)) or "",
        weight=_weight(args.get(engine_args.WEIGHT)),
        service_s=service_s if program_service_s is None else program_service_s,
        inherited_s=service_s,
        parents=_parents(args.get(engine_args.PARENTS)),
        wait_s=_amount(args.get(engine_args.WAIT_S)),
        expected_s=_amount(args.get(engine_args.EXPECTED_S)),
        age_s=_amount(args.get(engine_args.AGE_S)),
        work=_amount(args.get(engine_args.WORK)),
        class_name=_identifier(args.get(engine_args.CLASS)) or "",
        group=_identifier(args.get(engine_args.GROUP)) or "",
        priority=_priority(args.get(engine_args.PRIORITY)),
        return_s=_amount(args.get(engine_args.RETURN_S)),
    )
    return CallIdentity(
        call_id=_identifier(args.get(engine_args.CALL)) or request_id,
        arrival=arrival,
        is_last=args.get(engine_args.LAST) == 1,
        spread=_amount(args.get(engine_args.SPREAD)),
        ended=_ended(args.get(engine_args.ENDED)),
        gateway=_identifier(args.get(engine_args.GATEWAY)) or "",
    )


def _identifier(value: object) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH:
        return value
    return None


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


def _priority(value: object) -> Priority:
    # Not by a look into the values, which would hash what a client sends.
    return Priority(value) if isinstance(value, str) and value in _PRIORITIES else Priority.DEFAULT


def _weight(value: object) -> float:
    weight = _amount(value)
    return weight if weight is not None and 1 / _WEIGHT_LIMIT <= weight <= _WEIGHT_LIMIT else DEFAULT_WEIGHT


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A huge integer cannot become a float at all, so it is compared before it is converted.
    if not 0 <= value < 1e12 or math.isnan(value):
        return None
    return float(value)
