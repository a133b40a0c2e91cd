"""The identity of a request, read from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autellix_wire import engine_args

__all__ = ["MAX_ID_LENGTH", "CallIdentity", "read_identity"]

MAX_ID_LENGTH = 320
"""Room for an id of 256 characters and the name of its tenant before it."""
DEFAULT_THREAD = "0"
DEFAULT_WEIGHT = 1.0
_WEIGHT_LIMIT = 1e6


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
    """Who shares the engine with other tenants."""
    weight: float = DEFAULT_WEIGHT
    """The tenant's share of the engine, in proportion to the weights of the others."""
    is_last: bool = False
    """Whether the program ends with this call."""

    @property
    def has_totals(self) -> bool:
        """Whether a gateway keeps the program's totals."""
        return self.service_s is not None


def read_identity(request_id: str, extra_args: object, session_id: object) -> CallIdentity:
    """Read the identity of a request; a value of the wrong kind counts as absent, never as an error.

    A request that names no program belongs to its session, else it is a program of its own.
    """
    args: Mapping[object, object] = extra_args if isinstance(extra_args, Mapping) else {}
    program_id = _identifier(args.get(engine_args.PROGRAM)) or _identifier(session_id) or request_id
    return CallIdentity(
        call_id=_identifier(args.get(engine_args.CALL)) or request_id,
        program_id=program_id,
        thread_id=_identifier(args.get(engine_args.THREAD)) or DEFAULT_THREAD,
        service_s=_seconds(args.get(engine_args.SERVICE_S)),
        program_service_s=_seconds(args.get(engine_args.PROGRAM_SERVICE_S)),
        wait_s=_seconds(args.get(engine_args.WAIT_S)),
        expected_s=_seconds(args.get(engine_args.EXPECTED_S)),
        tenant=_identifier(args.get(engine_args.TENANT)) or "",
        weight=_weight(args.get(engine_args.WEIGHT)),
        is_last=args.get(engine_args.LAST) == 1,
    )


def _identifier(value: object) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH:
        return value
    return None


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return DEFAULT_WEIGHT
    return float(value) if 1 / _WEIGHT_LIMIT <= value <= _WEIGHT_LIMIT else DEFAULT_WEIGHT


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A huge integer cannot become a float at all, so it is compared before it is converted.
    if not 0 <= value < 1e12 or math.isnan(value):
        return None
    return float(value)
