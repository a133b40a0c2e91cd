"""Keeps what tenants and their programs use, and lets calls begin by it: `limits` decides, this remembers.

The numbers live in this process: they begin anew when it is started, and gateways side by side count each
for itself. A program's numbers go when it ends, however it ends, as the recorder's do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.gateway.errors import BodyTooLargeError, LimitError
from autellix_backend.gateway.lifecycle import CallSettled, LifecycleSubscriber, Outcome
from autellix_backend.gateway.tenancy.quotas import (
    DAY_S,
    Bucket,
    ProgramUse,
    TenantUse,
    capacity,
    full_bucket,
    rate_headers,
    refusal,
)
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.settings import TenantLimits

NO_LIMITS = TenantLimits()


@dataclass(slots=True)
class _Tenant:
    calls: int = 0
    call_bytes: int = 0
    programs: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None
    day: int = -1
    day_tokens: int = 0
    day_service_s: float = 0.0


@dataclass(slots=True)
class _Program:
    account: _Tenant
    running: int = 0
    calls: int = 0
    tokens: int = 0
    service_s: float = 0.0
    is_in_table: bool = False
    """Whether the store has it for certain, and will publish its end."""


@dataclass(slots=True, eq=False)
class Permit:
    """A call that may begin, and what it holds of its tenant's limits until it is settled."""

    call_key: str
    program_id: str
    account: _Tenant
    limits: TenantLimits
    body_bytes: int
    headers: dict[str, str]
    """What its answer says about the rates."""


class Limiter(LifecycleSubscriber):
    """Admits calls by their tenants' limits, and charges them when they are settled."""

    def __init__(self, *, epoch_s: float, on_refusal: Callable[[str, str], None]) -> None:
        """Start with nothing used.

        Args:
            epoch_s: What to add to the calls' clock to get seconds since 1970, by which days begin.
            on_refusal: Is told the tenant and the code of each refusal.
        """
        self._epoch_s = epoch_s
        self._on_refusal = on_refusal
        self._tenants: dict[str, _Tenant] = {}
        self._programs: dict[str, _Program] = {}
        self._permits: dict[str, Permit] = {}

    def admit(
        self, tenant: Tenant, call_key: str, program_id: str, body_bytes: int, now: float
    ) -> Permit | None:
        """Admit a call and count it; return None if its tenant has no limits.

        Raises:
            LimitError: if a limit forbids it; then nothing is counted.
            BodyTooLargeError: if its body alone is more than all its tenant's calls may have.
        """
        limits = tenant.limits
        if limits == NO_LIMITS:
            return None
        account = self._tenants.setdefault(tenant.name, _Tenant())
        if limits.max_call_bytes is not None and body_bytes > limits.max_call_bytes:
            self._on_refusal(tenant.name, BodyTooLargeError.code)
            raise BodyTooLargeError(limits.max_call_bytes, "limits.max_call_bytes")
        self._advance(account, limits, now)
        program = self._programs.get(program_id)
        used = None
        if program is not None:
            used = ProgramUse(calls=program.calls, tokens=program.tokens, service_s=program.service_s)
        reason = refusal(limits, self._use(account, now), used, body_bytes)
        if reason is not None:
            self._on_refusal(tenant.name, reason.code)
            raise LimitError(
                reason.message,
                limit=reason.limit,
                kind=reason.kind,
                code=reason.code,
                retry_after_s=reason.retry_after_s,
                should_retry=reason.should_retry,
                rate_headers=rate_headers(limits, self._use(account, now)),
            )
        if account.requests is not None:
            account.requests = account.requests.less(1)
        account.calls += 1
        account.call_bytes += body_bytes
        self._enter(account, program_id)
        headers = rate_headers(limits, self._use(account, now))
        permit = self._permits[call_key] = Permit(call_key, program_id, account, limits, body_bytes, headers)
        return permit

    def cancel(self, permit: Permit, now: float) -> None:
        """Take back the permit of a call that could not begin."""
        self._give_back(permit, now, tokens=0, service_s=0.0, is_refunded=True)

    def charge(
        self, permit: Permit, now: float, *, tokens: int, service_s: float, is_refunded: bool = False
    ) -> None:
        """Take back the permit of a call that has ended, and charge its cost to tenant and program.

        Args:
            permit: The call's; each is charged or cancelled once.
            now: The time.
            tokens: Prompt and output tokens.
            service_s: Service by engines.
            is_refunded: Whether the call does not count among the tenant's requests.
        """
        self._programs[permit.program_id].is_in_table = True
        self._give_back(permit, now, tokens=tokens, service_s=service_s, is_refunded=is_refunded)

    def on_call_settled(self, settled: CallSettled) -> None:
        """Charge a call that was admitted by limits."""
        permit, facts = self._permits.get(settled.call.key), settled.facts
        if permit is not None:
            self.charge(
                permit,
                settled.at_s,
                tokens=(facts.prompt_tokens or 0) + (facts.output_tokens or 0),
                service_s=facts.service_s,
                # A call that no engine took does not count among the tenant's requests.
                is_refunded=facts.outcome == Outcome.UNAVAILABLE,
            )

    def on_program_ended(self, program_id: str) -> None:
        """Forget a program; may be called for any id."""
        program = self._programs.get(program_id)
        if program is not None:
            program.is_in_table = False
            self._drop_if_gone(program_id, program)

    def _give_back(
        self, permit: Permit, now: float, *, tokens: int, service_s: float, is_refunded: bool
    ) -> None:
        known = self._permits.pop(permit.call_key, None)
        assert known is permit, "a permit is given back once"
        account, program = permit.account, self._programs[permit.program_id]
        account.calls -= 1
        account.call_bytes -= permit.body_bytes
        self._advance(account, permit.limits, now)
        if is_refunded and account.requests is not None:
            # A bucket that has been filled meanwhile holds it already.
            room = capacity(permit.limits.requests_per_minute or 0.0) - account.requests.level
            account.requests = account.requests.less(-min(1.0, room))
        if account.tokens is not None:
            account.tokens = account.tokens.less(tokens)
        account.day_tokens += tokens
        account.day_service_s += service_s
        program.running -= 1
        program.calls -= is_refunded
        program.tokens += tokens
        program.service_s += service_s
        self._drop_if_gone(permit.program_id, program)

    @property
    def held(self) -> int:
        """Return the number of programs that are remembered."""
        return len(self._programs)

    @property
    def open_calls(self) -> int:
        """Return the number of calls that hold a permit."""
        return sum(account.calls for account in self._tenants.values())

    def check(self) -> None:
        """Assert every invariant."""
        for account in self._tenants.values():
            programs = [program for program in self._programs.values() if program.account is account]
            assert account.programs == len(programs)
            assert account.calls == sum(program.running for program in programs)
            assert account.call_bytes >= 0
            assert account.calls or not account.call_bytes

    def _enter(self, account: _Tenant, program_id: str) -> None:
        program = self._programs.get(program_id)
        if program is None:
            program = self._programs[program_id] = _Program(account)
            account.programs += 1
        program.running += 1
        program.calls += 1

    def _drop_if_gone(self, program_id: str, program: _Program) -> None:
        if not program.running and not program.is_in_table:
            del self._programs[program_id]
            program.account.programs -= 1

    def _advance(self, account: _Tenant, limits: TenantLimits, now: float) -> None:
        """Bring buckets and the day up to the moment; the limits may have changed since."""
        account.requests = _bucket(account.requests, limits.requests_per_minute, now)
        account.tokens = _bucket(account.tokens, limits.tokens_per_minute, now)
        day = int((now + self._epoch_s) // DAY_S)
        if day != account.day:
            account.day, account.day_tokens, account.day_service_s = day, 0, 0.0

    def _use(self, account: _Tenant, now: float) -> TenantUse:
        return TenantUse(
            calls=account.calls,
            call_bytes=account.call_bytes,
            programs=account.programs,
            requests=account.requests,
            tokens=account.tokens,
            day_tokens=account.day_tokens,
            day_service_s=account.day_service_s,
            day_left_s=DAY_S - (now + self._epoch_s) % DAY_S,
        )


def _bucket(bucket: Bucket | None, per_minute: float | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return full_bucket(per_minute, now) if bucket is None else bucket.refilled(per_minute, now)
