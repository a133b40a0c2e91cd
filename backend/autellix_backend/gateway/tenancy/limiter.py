"""The usage of tenants and programs, and the admission of requests by it; `quotas` holds the arithmetic.

Rates and caps live in one process: a restart resets them, and each of several gateways counts its own. What
is used of budgets is shared through the store. A program's usage is dropped when the program ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from autellix_backend.gateway.errors import UnavailableError
from autellix_backend.gateway.tenancy.quotas import (
    DAY_S,
    Bucket,
    ProgramUsage,
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


class Demand(NamedTuple):
    """What a call will probably use."""

    body_bytes: int
    prompt_tokens: int = 0
    most_output_tokens: int | None = None
    """The bound of the output; None without one."""


class _Reservation(NamedTuple):
    """An admitted request's share of its tenant's limits, until the request is settled."""

    program_id: str | None
    tenant: TenantUsage
    limits: TenantLimits
    demand: Demand
    tokens: int


class Limiter:
    """Admits requests by their tenants' limits, and charges them when they are settled."""

    def __init__(self, *, epoch_s: float, on_refusal: Callable[[str, str], None]) -> None:
        """Start without any usage; `on_refusal` is called with the tenant and the code of each refusal.

        `epoch_s` plus the calls' clock gives seconds since 1970.
        """
        self._epoch_s = epoch_s
        self._on_refusal = on_refusal
        self._tenants: dict[str, TenantUsage] = {}
        self._programs: dict[str, ProgramUsage] = {}
        self._reservations: dict[str, _Reservation] = {}
        self._numbers = itertools.count()

    @contextmanager
    def counting(self, tenant: Tenant, clock: Callable[[], float]) -> Iterator[dict[str, str]]:
        """Count a request that is no call, and costs no tokens; provide the headers of its answer.

        Raises:
            LimitError: if a limit is reached.
        """
        key, is_refunded = f"pass-through-{next(self._numbers)}", False
        headers = self.admit(tenant, key, None, Demand(0, 0, 0), clock())
        try:
            yield headers
        except UnavailableError:
            is_refunded = True
            raise
        finally:
            self._release(key, clock(), is_refunded=is_refunded)

    def admit(
        self, tenant: Tenant, call_key: str, program_id: str | None, demand: Demand, now: float
    ) -> dict[str, str]:
        """Admit a call, or a request without a program, and count it; return the headers of its answer.

        A call without limits is not counted.

        Raises:
            LimitError: if a limit is reached; then nothing is counted.
        """
        limits = tenant.limits
        if limits == NO_LIMITS:
            return {}
        usage = self._tenants.setdefault(tenant.name, TenantUsage())
        self._advance(usage, limits, now)
        program = None if program_id is None else self._programs.get(program_id) or ProgramUsage()
        error = refusal(limits, usage, program, demand.body_bytes)
        if error is not None:
            self._on_refusal(tenant.name, error.code)
            error.headers.update(rate_headers(limits, usage))
            raise error
        if usage.requests is not None:
            usage.requests = usage.requests.less(1)
        most = usage.output_tokens if demand.most_output_tokens is None else demand.most_output_tokens
        tokens = demand.prompt_tokens + round(min(usage.output_tokens, most))
        usage.calls += 1
        usage.call_bytes += demand.body_bytes
        usage.reserved_tokens += tokens
        if program_id is not None and program is not None:
            program.running += 1
            program.reserved_tokens += tokens
            self._programs[program_id] = program
        self._reservations[call_key] = _Reservation(program_id, usage, limits, demand, tokens)
        return rate_headers(limits, usage)

    def on_begun(self, program_id: str, tokens: int) -> None:
        """Note what the calls of an admitted call's program have used, as far as the store knows it."""
        if (program := self._programs.get(program_id)) is not None:
            program.tokens = max(program.tokens, tokens)

    async def share(
        self,
        spend: Callable[[int, Mapping[str, tuple[int, int]]], Awaitable[Mapping[str, int]]],
        now: float,
        tenants: Iterable[str] = (),
    ) -> None:
        """Add what was used of today's budgets to the store, and learn what other gateways have used.

        Args:
            spend: The store's; may raise StoreUnavailableError.
            now: The time on the calls' clock.
            tenants: Further tenants with a budget for the day.
        """
        day, _ = self._day(now)
        for name in tenants:
            self._tenants.setdefault(name, TenantUsage(day=day, has_day_budget=True))
        budgeted = {name: usage for name, usage in self._tenants.items() if usage.has_day_budget}
        sent = {
            name: (usage.unshared_tokens, usage.day_tokens - usage.unshared_tokens)
            for name, usage in budgeted.items()
            if usage.day == day
        }
        for name, total in (await spend(day, sent) if sent else {}).items():
            usage = self._tenants[name]
            if usage.day == day:
                usage.unshared_tokens -= sent[name][0]
                usage.day_tokens = total + usage.unshared_tokens

    def release(self, call_key: str, now: float) -> None:
        """Release a call that could not start; it may be unknown."""
        self._release(call_key, now, is_refunded=True)

    def call_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's calls in flight."""
        usage = self._tenants.get(tenant)
        return 0 if usage is None else usage.call_bytes

    def charge(
        self,
        call_key: str,
        now: float,
        *,
        tokens: int = 0,
        output_tokens: int | None = None,
        is_refunded: bool = False,
    ) -> None:
        """Release an ended call and charge it to its tenant and program; it may be unknown.

        Args:
            call_key: The call's.
            now: The time on the calls' clock.
            tokens: What it costs.
            output_tokens: The output among them, if that is known.
            is_refunded: Whether it does not count among its tenant's requests.
        """
        if (reservation := self._reservations.get(call_key)) is not None:
            if reservation.program_id is not None:
                self._programs[reservation.program_id].is_in_table = True
            demand = reservation.demand
            if tokens and demand.most_output_tokens != 0:
                output = max(0, tokens - demand.prompt_tokens) if output_tokens is None else output_tokens
                reservation.tenant.observe_output(output, demand.most_output_tokens)
            self._release(call_key, now, tokens=tokens, is_refunded=is_refunded)

    def on_call_settled(self, settled: SettledCall) -> None:
        """Charge a call that was admitted by limits."""
        tokens, is_refunded = charge_of(settled)
        usage = settled.engine_usage
        self.charge(
            settled.start.key,
            settled.settled_s,
            tokens=tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            is_refunded=is_refunded,
        )

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
        usage, demand, program_id = reservation.tenant, reservation.demand, reservation.program_id
        usage.calls -= 1
        usage.call_bytes -= demand.body_bytes
        usage.reserved_tokens -= reservation.tokens
        self._advance(usage, reservation.limits, now)
        if is_refunded and usage.requests is not None:
            # A bucket that has been refilled since already holds the request.
            room = capacity(reservation.limits.requests_per_minute or 0.0) - usage.requests.level
            usage.requests = usage.requests.less(-min(1.0, room))
        if usage.tokens is not None:
            usage.tokens = usage.tokens.less(tokens)
        usage.day_tokens += tokens
        usage.unshared_tokens += tokens
        if program_id is None:
            return
        program = self._programs[program_id]
        program.running -= 1
        program.reserved_tokens -= reservation.tokens
        program.tokens += tokens
        self._drop_if_gone(program_id, program)

    def _drop_if_gone(self, program_id: str, program: ProgramUsage) -> None:
        if not program.running and not program.is_in_table:
            del self._programs[program_id]

    def _advance(self, usage: TenantUsage, limits: TenantLimits, now: float) -> None:
        # The tenants file may have changed the limits since the last call.
        usage.has_day_budget = limits.day_tokens is not None
        usage.requests = _bucket(usage.requests, limits.requests_per_minute, now)
        usage.tokens = _bucket(usage.tokens, limits.tokens_per_minute, now)
        day, usage.day_left_s = self._day(now)
        if day != usage.day:
            usage.day, usage.day_tokens, usage.unshared_tokens = day, 0, 0

    def _day(self, now: float) -> tuple[int, float]:
        """Return the number of the day, and what is left of it (s)."""
        day, day_s = divmod(now + self._epoch_s, DAY_S)
        return int(day), DAY_S - day_s


def charge_of(settled: SettledCall) -> tuple[int, bool]:
    """Return the tokens that a settled call costs, and whether it does not count as a request."""
    return settled.price_tokens, settled.outcome is Outcome.UNAVAILABLE and not settled.streamed_events


def _bucket(bucket: Bucket | None, per_minute: float | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return full_bucket(per_minute, now) if bucket is None else bucket.refilled(per_minute, now)
