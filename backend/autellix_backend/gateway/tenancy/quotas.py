"""What limits allow: buckets, budgets and caps as arithmetic over plain values, with time as an argument.

A rate is a bucket that holds what one minute allows and is filled evenly, so that over any time t no more
than the bucket and t's share pass. Tokens are known only when a call has ended: it is admitted while the
bucket is not in debt, and charged with what it took, which may leave a debt to wait for. Budgets and caps
are compared with what is used already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autellix_backend.settings import TenantLimits

MINUTE_S = 60.0
DAY_S = 86400.0
SOON_S = 1.0
"""When to come back for a place among the calls or programs: nobody knows when one will be free."""
PATIENCE_S = 60.0
"""The longest wait that OpenAI's clients obey; they make no second attempt where it would be longer."""

DUST_S = 1e-6
"""What the arithmetic of floats may be off; who waited as told must not be refused for it."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a rate has left at a moment; below zero it is in debt."""

    level: float
    at_s: float

    def refilled(self, per_minute: float, now: float) -> Bucket:
        """Return the bucket at a later moment."""
        level = self.level + max(0.0, now - self.at_s) * per_minute / MINUTE_S
        return Bucket(min(level, capacity(per_minute)), now)

    def less(self, amount: float) -> Bucket:
        """Return the bucket without an amount; with it again, if that is negative."""
        return replace(self, level=self.level - amount)

    def wait_s(self, amount: float, per_minute: float) -> float:
        """Return how long it takes until the bucket holds an amount."""
        return max(0.0, amount - self.level) * MINUTE_S / per_minute


def capacity(per_minute: float) -> float:
    """Return what a bucket holds at most: a minute's worth, and one request at least."""
    return max(1.0, per_minute)


def full_bucket(per_minute: float, now: float) -> Bucket:
    """Return the bucket of whom nobody has seen yet."""
    return Bucket(capacity(per_minute), now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """What a tenant uses at a moment; a bucket is None where there is no such limit."""

    calls: int = 0
    call_bytes: int = 0
    programs: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None
    day_tokens: int = 0
    day_service_s: float = 0.0
    day_left_s: float = DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramUse:
    """What a program has used so far."""

    calls: int = 0
    tokens: int = 0
    service_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call may not begin: the limit, and when it is worth coming back (None: never)."""

    code: str
    kind: str
    limit: str
    message: str
    retry_after_s: float | None

    @property
    def should_retry(self) -> bool:
        """Say whether a client should try again by itself."""
        return self.retry_after_s is not None and self.retry_after_s <= PATIENCE_S


def refusal(
    limits: TenantLimits, tenant: TenantUse, program: ProgramUse | None, body_bytes: int
) -> Refusal | None:
    """Return why a call may not begin; None if it may. `program` is None for a program that would be new."""
    return (
        _program_budget(limits, program or ProgramUse())
        or _tenant_budget(limits, tenant)
        or _caps(limits, tenant, body_bytes, is_new=program is None)
        or _rates(limits, tenant)
    )


def _program_budget(limits: TenantLimits, used: ProgramUse) -> Refusal | None:
    for name, unit, value in (
        ("program_calls", "calls", used.calls),
        ("program_tokens", "tokens", used.tokens),
        ("program_service_s", "seconds of service", used.service_s),
    ):
        limit = getattr(limits, name)
        if limit is not None and value >= limit:
            message = f"the program has used its budget: {value:g} of {limit:g} {unit}"
            return Refusal("program_budget_exceeded", "insufficient_quota", name, message, None)
    return None


def _tenant_budget(limits: TenantLimits, used: TenantUse) -> Refusal | None:
    for name, unit, value in (
        ("day_tokens", "tokens", used.day_tokens),
        ("day_service_s", "seconds of service", used.day_service_s),
    ):
        limit = getattr(limits, name)
        if limit is not None and value >= limit:
            message = f"the budget of this day (UTC) is used: {value:g} of {limit:g} {unit}"
            return Refusal("tenant_budget_exceeded", "insufficient_quota", name, message, used.day_left_s)
    return None


def _caps(limits: TenantLimits, used: TenantUse, body_bytes: int, *, is_new: bool) -> Refusal | None:
    for name, code, what, value in (
        ("max_calls", "too_many_calls", "calls in flight", used.calls + 1),
        ("max_call_bytes", "too_many_call_bytes", "bytes of calls in flight", used.call_bytes + body_bytes),
        ("max_programs", "too_many_programs", "programs", used.programs + is_new),
    ):
        limit = getattr(limits, name)
        if limit is not None and value > limit:
            message = f"there may be {limit} {what} at once, and this would make {value}"
            return Refusal(code, "rate_limit_error", name, message, SOON_S)
    return None


def _rates(limits: TenantLimits, used: TenantUse) -> Refusal | None:
    for name, kind, bucket, needed in (
        ("requests_per_minute", "requests", used.requests, 1.0),
        ("tokens_per_minute", "tokens", used.tokens, 0.0),
    ):
        limit = getattr(limits, name)
        if limit is not None and bucket is not None and (wait_s := bucket.wait_s(needed, limit)) > DUST_S:
            message = f"the rate of {limit:g} {kind} per minute is reached; there is room in {wait_s:.3g} s"
            return Refusal("rate_limit_exceeded", kind, name, message, wait_s)
    return None


def rate_headers(limits: TenantLimits, tenant: TenantUse) -> dict[str, str]:
    """Return OpenAI's headers about the rates: limit, what remains, and when the bucket is full again."""
    headers: dict[str, str] = {}
    for kind, limit, bucket in (
        ("requests", limits.requests_per_minute, tenant.requests),
        ("tokens", limits.tokens_per_minute, tenant.tokens),
    ):
        if limit is not None and bucket is not None:
            reset_s = bucket.wait_s(capacity(limit), limit)
            headers[f"x-ratelimit-limit-{kind}"] = f"{capacity(limit):.0f}"
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level)))
            headers[f"x-ratelimit-reset-{kind}"] = duration_text(reset_s)
    return headers


def duration_text(seconds: float) -> str:
    """Return a duration as OpenAI writes it: 120ms, 7.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest_s = divmod(math.ceil(seconds * 100) / 100, MINUTE_S)
    return f"{minutes:.0f}m{rest_s:g}s" if minutes else f"{rest_s:g}s"
