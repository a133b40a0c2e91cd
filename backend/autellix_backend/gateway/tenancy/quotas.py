"""Rate limits, budgets and caps as arithmetic over plain values; time is an argument.

A rate limit is a bucket that holds one minute's worth and refills evenly, so any period admits at most a
bucket plus the period's share. A call's tokens are known only at its end: calls are admitted while the
bucket is not in debt, and a charge may leave a debt that later calls wait for. Budgets and caps are compared
with the usage so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autellix_backend.gateway.errors import LimitError
from autellix_backend.settings import TenantLimits

MINUTE_S = 60.0
DAY_S = 86400.0
SOON_S = 1.0
"""The retry time at a cap: it is unknown when a call or program will end."""
DUST_S = 1e-6
"""Rounding error of floats; a client that waited for `Retry-After` must not be refused for it."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The level of a rate limit at a moment; below zero it is in debt."""

    level: float
    at_s: float

    def refilled(self, per_minute: float, now: float) -> Bucket:
        """Return the bucket at a later moment."""
        level = self.level + max(0.0, now - self.at_s) * per_minute / MINUTE_S
        return Bucket(min(level, capacity(per_minute)), now)

    def less(self, amount: float) -> Bucket:
        """Return the bucket minus an amount, which may be negative."""
        return replace(self, level=self.level - amount)

    def wait_s(self, amount: float, per_minute: float) -> float:
        """Return how long it takes until the bucket holds an amount."""
        return max(0.0, amount - self.level) * MINUTE_S / per_minute


def capacity(per_minute: float) -> float:
    """Return the size of a bucket: a minute's worth, and at least one request."""
    return max(1.0, per_minute)


def full_bucket(per_minute: float, now: float) -> Bucket:
    """Return a full bucket for a new tenant."""
    return Bucket(capacity(per_minute), now)


@dataclass(slots=True, kw_only=True)
class TenantUsage:
    """The usage of a tenant at a moment; a bucket is None without such a limit."""

    calls: int = 0
    call_bytes: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None
    day: int = -1
    """Its number since 1970, UTC."""
    day_tokens: int = 0
    day_left_s: float = DAY_S


def refusal(
    limits: TenantLimits, tenant: TenantUsage, program_tokens: int, body_bytes: int
) -> LimitError | None:
    """Return the error that refuses a call, None if it is admitted; `program_tokens` were used before it."""
    program, today = "the program has used up its budget", "today's budget (UTC) is used up"
    return (
        _budget(limits, "program_tokens", program, program_tokens)
        or _budget(limits, "day_tokens", today, tenant.day_tokens, tenant.day_left_s)
        or _caps(limits, tenant, body_bytes)
        or _rates(limits, tenant)
    )


def _budget(
    limits: TenantLimits, name: str, problem: str, used: int, left_s: float | None = None
) -> LimitError | None:
    limit = getattr(limits, name)
    if limit is None or used < limit:
        return None
    code = "tenant_budget_exceeded" if name == "day_tokens" else "program_budget_exceeded"
    return LimitError(code, "insufficient_quota", name, f"{problem}: {used} of {limit} tokens", left_s)


def _caps(limits: TenantLimits, used: TenantUsage, body_bytes: int) -> LimitError | None:
    for name, code, what, value in (
        ("max_calls", "too_many_calls", "calls in flight", used.calls + 1),
        ("max_call_bytes", "too_many_call_bytes", "bytes of calls in flight", used.call_bytes + body_bytes),
    ):
        limit = getattr(limits, name)
        if limit is not None and value > limit:
            return too_many(name, code, what, limit, value)
    return None


def too_many(name: str, code: str, what: str, limit: int, would_be: int) -> LimitError:
    """Return the error of a cap that would be exceeded."""
    message = f"at most {limit} {what} at once are allowed, and this would make {would_be}"
    return LimitError(code, "rate_limit_error", name, message, SOON_S)


def _rates(limits: TenantLimits, used: TenantUsage) -> LimitError | None:
    for name, kind, bucket, needed in (
        ("requests_per_minute", "requests", used.requests, 1.0),
        ("tokens_per_minute", "tokens", used.tokens, 0.0),
    ):
        limit = getattr(limits, name)
        if limit is not None and bucket is not None and (wait_s := bucket.wait_s(needed, limit)) > DUST_S:
            message = f"the rate limit of {limit:g} {kind} per minute is reached; retry in {wait_s:.3g} s"
            return LimitError("rate_limit_exceeded", kind, name, message, wait_s)
    return None


def rate_headers(limits: TenantLimits, tenant: TenantUsage) -> dict[str, str]:
    """Return OpenAI's rate limit headers: the limit, the rest, and when the bucket is full again."""
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
