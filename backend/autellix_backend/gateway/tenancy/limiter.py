"""Keeps what tenants and their programs use, and lets calls begin by it: `limits` decides, this remembers.

The numbers live in this process: they begin anew when it is started, and gateways side by side count each
for itself. A program's numbers go when it ends, however it ends, as the recorder's do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autellix_backend.gateway.errors import BodyTooLargeError, LimitError
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
    last_event_s: float
    running: int = 0
    calls: int = 0
    tokens: int = 0
    service_s: float = 0.0
    is_ending: bool = False
    # A dict serves as a set that keeps its order.
    sessions: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Permit:
    """A call that may begin, and what it holds of its tenant's limits until it is settled."""

    program_id: str
    account: _Tenant
    limits: TenantLimits
    body_bytes: int
    headers: dict[str, str]
    """What its answer says about the rates."""
    was_over: bool
    """Whether without this call its program would not be there, or end with those that run."""
    is_open: bool = True


class Limiter:
    """Lets calls begin, and charges them when they are settled; an observer of programs' ends."""

    def __init__(self, *, idle_s: float, epoch_s: float, on_refusal: Callable[[str, str], None]) -> None:
        """Start with nothing used.

        Args:
            idle_s: How long a program without a running call may be silent before it counts as ended.
            epoch_s: What to add to the calls' clock to get seconds since 1970, by which days begin.
            on_refusal: Is told the tenant and the code of each refusal.
        """
        self._idle_s = idle_s
        self._epoch_s = epoch_s
        self._on_refusal = on_refusal
        self._tenants: dict[str, _Tenant] = {}
        self._programs: dict[str, _Program] = {}
        self._programs_of: dict[str, dict[str, None]] = {}

    def admit(
        self, tenant: Tenant, program_id: str, session_id: str | None, body_bytes: int, now: float
    ) -> Permit | None:
        """Let a call begin, and count it; return None if its tenant has no limits.

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
        was_over = program is None or program.is_ending
        self._enter(account, program_id, session_id, now)
        headers = rate_headers(limits, self._use(account, now))
        return Permit(program_id, account, limits, body_bytes, headers, was_over)

    def cancel(self, permit: Permit, now: float) -> None:
        """Take back a permit whose call could not begin."""
        is_final = permit.was_over
        self.charge(permit, tokens=0, service_s=0.0, now=now, is_refunded=True, is_final=is_final)

    def charge(
        self,
        permit: Permit,
        *,
        tokens: int,
        service_s: float,
        now: float,
        is_refunded: bool,
        is_final: bool,
    ) -> None:
        """Take back the permit of a call that has ended, and charge what it took.

        Args:
            permit: What admit() gave; each is charged or cancelled once.
            tokens: Prompt and output tokens.
            service_s: Service by engines.
            now: The time.
            is_refunded: Whether it counts as a request after all.
            is_final: Whether its program ends with it.
        """
        assert permit.is_open, "a permit is given back once"
        permit.is_open = False
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
        program.last_event_s = now
        program.is_ending |= is_final
        self._drop_if_gone(permit.program_id, program)

    def program_ended(self, program_id: str) -> None:
        """Forget a program, at once or with its last running call; may be called for any id."""
        program = self._programs.get(program_id)
        if program is not None:
            program.is_ending = True
            self._drop_if_gone(program_id, program)

    def session_ended(self, session_id: str) -> None:
        """Forget the programs that only this session kept; may be called for any id."""
        for program_id in self._programs_of.pop(session_id, {}):
            program = self._programs[program_id]
            del program.sessions[session_id]
            if not program.sessions:
                self.program_ended(program_id)

    def expire(self, now: float) -> None:
        """Forget the programs that have been silent for too long."""
        for program_id, program in list(self._programs.items()):
            if not program.running and now - program.last_event_s >= self._idle_s:
                self.program_ended(program_id)

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
        for session_id, program_ids in self._programs_of.items():
            assert program_ids
            assert all(session_id in self._programs[program_id].sessions for program_id in program_ids)

    def _enter(self, account: _Tenant, program_id: str, session_id: str | None, now: float) -> None:
        program = self._programs.get(program_id)
        if program is None:
            program = self._programs[program_id] = _Program(account, now)
            account.programs += 1
        program.running += 1
        program.calls += 1
        program.last_event_s = now
        program.is_ending = False
        if session_id is not None:
            program.sessions[session_id] = None
            self._programs_of.setdefault(session_id, {})[program_id] = None

    def _drop_if_gone(self, program_id: str, program: _Program) -> None:
        if program.running or not program.is_ending:
            return
        del self._programs[program_id]
        program.account.programs -= 1
        for session_id in program.sessions:
            programs = self._programs_of[session_id]
            del programs[program_id]
            if not programs:
                del self._programs_of[session_id]

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
