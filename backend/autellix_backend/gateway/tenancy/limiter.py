"""The usage of tenants and programs, and the admission of calls by it; `quotas` holds the arithmetic.

Usage lives in one process: a restart resets it, and each of several gateways counts its own. A program's
usage is dropped when the program ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from autellix_backend.gateway.tenancy.quotas import (
    DAY_S,
    Bucket,
    TenantUsage,
    capacity,
    full_bucket,
    rate_headers,
    refusal,
)
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.settings import TenantLimits

NO_LIMITS = TenantLimits()


@dataclass(slots=True)
class _LimitedProgram:
    tokens: int = 0
    running: int = 0
    is_in_table: bool = False
    """Whether the store certainly knows it, and so will publish its end."""


class _Reservation(NamedTuple):
    """An admitted call's share of its tenant's limits, until the call is settled."""

    program_id: str
    tenant: TenantUsage
    limits: TenantLimits
    body_bytes: int


class Limiter:
    """Admits calls by their tenants' limits, and charges them when they are settled."""

    def __init__(self, *, epoch_s: float, on_refusal: Callable[[str, str], None]) -> None:
        """Start without any usage; `on_refusal` is called with the tenant and the code of each refusal.

        `epoch_s` plus the calls' clock gives seconds since 1970.
        """
        self._epoch_s = epoch_s
        self._on_refusal = on_refusal
        self._tenants: dict[str, TenantUsage] = {}
        self._programs: dict[str, _LimitedProgram] = {}
        self._reservations: dict[str, _Reservation] = {}

    def admit(
        self, tenant: Tenant, call_key: str, program_id: str, body_bytes: int, now: float
    ) -> dict[str, str]:
        """Admit a call and count it; return the rate limit headers of its answer.

        A call without limits is not counted.

        Raises:
            LimitError: if a limit is reached; then nothing is counted.
        """
        limits = tenant.limits
        if limits == NO_LIMITS:
            return {}
        usage = self._tenants.setdefault(tenant.name, TenantUsage())
        self._advance(usage, limits, now)
        program = self._programs.get(program_id)
        error = refusal(limits, usage, 0 if program is None else program.tokens, body_bytes)
        if error is not None:
            self._on_refusal(tenant.name, error.code)
            error.headers.update(rate_headers(limits, usage))
            raise error
        if usage.requests is not None:
            usage.requests = usage.requests.less(1)
        usage.calls += 1
        usage.call_bytes += body_bytes
        self._programs.setdefault(program_id, _LimitedProgram()).running += 1
        self._reservations[call_key] = _Reservation(program_id, usage, limits, body_bytes)
        return rate_headers(limits, usage)

    def release(self, call_key: str, now: float) -> None:
        """Release a call that could not start; it may be unknown."""
        self._release(call_key, now, is_refunded=True)

    def call_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's calls in flight."""
        usage = self._tenants.get(tenant)
        return 0 if usage is None else usage.call_bytes

    def charge(self, call_key: str, now: float, *, tokens: int = 0, is_refunded: bool = False) -> None:
        """Release an ended call and charge it to its tenant and program; it may be unknown.

        A refunded call does not count among its tenant's requests.
        """
        if call_key in self._reservations:
            self._programs[self._reservations[call_key].program_id].is_in_table = True
            self._release(call_key, now, tokens=tokens, is_refunded=is_refunded)

    def on_call_settled(self, settled: SettledCall) -> None:
        """Charge a call that was admitted by limits."""
        tokens, is_refunded = charge_of(settled)
        self.charge(settled.start.key, settled.settled_s, tokens=tokens, is_refunded=is_refunded)

    def on_program_ended(self, program_id: str) -> None:
        """Drop a program; the id may be unknown."""
        program = self._programs.get(program_id)
        if program is not None:
            program.is_in_table = False
            self._drop_if_gone(program_id, program)

    def _release(self, call_key: str, now: float, *, tokens: int = 0, is_refunded: bool) -> None:
        reservation = self._reservations.pop(call_key, None)
        if reservation is None:
            return
        usage, program = reservation.tenant, self._programs[reservation.program_id]
        usage.calls -= 1
        usage.call_bytes -= reservation.body_bytes
        self._advance(usage, reservation.limits, now)
        if is_refunded and usage.requests is not None:
            # A bucket that has been refilled since already holds the request.
            room = capacity(reservation.limits.requests_per_minute or 0.0) - usage.requests.level
            usage.requests = usage.requests.less(-min(1.0, room))
        if usage.tokens is not None:
            usage.tokens = usage.tokens.less(tokens)
        usage.day_tokens += tokens
        program.running -= 1
        program.tokens += tokens
        self._drop_if_gone(reservation.program_id, program)

    def _drop_if_gone(self, program_id: str, program: _LimitedProgram) -> None:
        if not program.running and not program.is_in_table:
            del self._programs[program_id]

    def _advance(self, usage: TenantUsage, limits: TenantLimits, now: float) -> None:
        # The tenants file may have changed the limits since the last call.
        usage.requests = _bucket(usage.requests, limits.requests_per_minute, now)
        usage.tokens = _bucket(usage.tokens, limits.tokens_per_minute, now)
        day, day_s = divmod(now + self._epoch_s, DAY_S)
        usage.day_left_s = DAY_S - day_s
        if int(day) != usage.day:
            usage.day, usage.day_tokens = int(day), 0


def charge_of(settled: SettledCall) -> tuple[int, bool]:
    """Return the tokens that a settled call costs, and whether it does not count as a request."""
    usage = settled.engine_usage
    # A stream that states no usage costs an output token for each event.
    tokens = settled.streamed_events if usage is None else usage.prompt_tokens + usage.output_tokens
    return tokens, settled.outcome is Outcome.UNAVAILABLE and not settled.streamed_events


def _bucket(bucket: Bucket | None, per_minute: float | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return full_bucket(per_minute, now) if bucket is None else bucket.refilled(per_minute, now)
