"""The identity of a request, read from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from autellix_backend.reports.request_ids import args_in
from autellix_wire import engine_args

MAX_ID_LENGTH = 320
"""Room for an id of 256 characters and the name of its tenant before it."""
MAX_ENDED = 256
"""The most ended programs that one call may name."""
DEFAULT_THREAD = "0"
DEFAULT_WEIGHT = 1.0
_WEIGHT_LIMIT = 1e6
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
_ended_ids: msgspec.json.Decoder[tuple[str, ...]] = msgspec.json.Decoder(
    Annotated[tuple[_Id, ...], msgspec.Meta(max_length=MAX_ENDED)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdentity:
    """The program, thread and call of one request, and the program's totals where the gateway keeps them."""

    call_id: str
    program_id: str
    thread_id: str = DEFAULT_THREAD
    service_s: float | None = None
    """The service that the call starts with by the policy."""
    program_service_s: float | None = None
    """The service of its program, where that differs."""
    wait_s: float | None = None
    expected_s: float | None = None
    """The service still expected of its program."""
    tenant: str = ""
    """Its tenant; tenants share the engine by weight."""
    weight: float = DEFAULT_WEIGHT
    """The tenant's share of the engine, in proportion to the weights of the others."""
    is_last: bool = False
    """Whether the program ends with this call."""
    age_s: float | None = None
    """Time since the first call of its program arrived."""
    work: float | None = None
    """The work of its program's finished calls (see `core.boost`)."""
    expected_work: float | None = None
    """The total work that its program is expected to need."""
    spread: float | None = None
    """Of the sizes of ended programs, as the gateway has measured it."""
    class_name: str = ""
    """The class of its program."""
    ended: tuple[str, ...] = ()
    """Other programs that have ended."""
    gateway: str = ""
    """The gateway that gets its report over the network; empty for the one on this machine."""


def read_identity(request_id: str, extra_args: object, session_id: object) -> CallIdentity:
    """Read the identity of a request; a value of the wrong kind counts as absent, never as an error.

    A request that names no program belongs to its session, else it is a program of its own.
    """
    args: Mapping[object, object] = extra_args if isinstance(extra_args, Mapping) else {}
    if engine_args.PROGRAM not in args:
        args = {**args_in(request_id), **args}
    program_id = _identifier(args.get(engine_args.PROGRAM)) or _identifier(session_id) or request_id
    return CallIdentity(
        call_id=_identifier(args.get(engine_args.CALL)) or request_id,
        program_id=program_id,
        thread_id=_identifier(args.get(engine_args.THREAD)) or DEFAULT_THREAD,
        service_s=_amount(args.get(engine_args.SERVICE_S)),
        program_service_s=_amount(args.get(engine_args.PROGRAM_SERVICE_S)),
        wait_s=_amount(args.get(engine_args.WAIT_S)),
        expected_s=_amount(args.get(engine_args.EXPECTED_S)),
        tenant=_identifier(args.get(engine_args.TENANT)) or "",
        weight=_weight(args.get(engine_args.WEIGHT)),
        is_last=args.get(engine_args.LAST) == 1,
        age_s=_amount(args.get(engine_args.AGE_S)),
        work=_amount(args.get(engine_args.WORK)),
        expected_work=_amount(args.get(engine_args.EXPECTED_WORK)),
        spread=_amount(args.get(engine_args.SPREAD)),
        class_name=_identifier(args.get(engine_args.CLASS)) or "",
        gateway=_identifier(args.get(engine_args.GATEWAY)) or "",
        ended=_ended(args.get(engine_args.ENDED)),
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


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return DEFAULT_WEIGHT
    return float(value) if 1 / _WEIGHT_LIMIT <= value <= _WEIGHT_LIMIT else DEFAULT_WEIGHT


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A huge integer cannot become a float at all, so it is compared before it is converted.
    if not 0 <= value < 1e12 or math.isnan(value):
        return None
    return float(value)
