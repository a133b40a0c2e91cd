"""Rate limits, budgets and caps as arithmetic over plain values; time is an argument.

A rate limit is a bucket that holds one minute's worth and refills evenly, so any period admits at most a
bucket plus the period's share. A call's tokens are known only at its end: calls are admitted while the
bucket is not in debt, and a charge may leave a debt that later calls wait for. A budget is compared with the
usage so far and with what the calls in flight will probably add, so that many at once cannot overdraw it.
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
FIRST_OUTPUT_TOKENS = 256.0
"""The estimated output of a tenant's first call, if it states no bound."""
MEAN_CALLS = 50
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
    """The number of the day since 1970, UTC."""
    day_tokens: int = 0
    """What is known of all gateways that share a store."""
    unshared_tokens: int = 0
    """The part of the used tokens that the store does not know yet."""
    reserved_tokens: int = 0
    """The estimates of the calls in flight."""
    output_tokens: float = FIRST_OUTPUT_TOKENS
    """The mean of the latest calls."""
    output_count: int = 0
    """How many calls that mean is of, at most `MEAN_CALLS`."""
    has_day_budget: bool = False
    day_left_s: float = DAY_S

    def observe_output(self, tokens: int, most: int | None) -> None:
        """Learn from the output of a call, of which it allowed `most` tokens, without a bound if None.

        One that is as long as allowed might be longer: short ones must not make room for long ones.
        """
        if most is not None and tokens >= most and tokens <= self.output_tokens:
            return
        self.output_count = min(self.output_count + 1, MEAN_CALLS)
        self.output_tokens += (tokens - self.output_tokens) / self.output_count


@dataclass(slots=True, kw_only=True)
class ProgramUsage:
    """The usage of a program at a moment."""

    tokens: int = 0
    reserved_tokens: int = 0
    """The estimates of its calls in flight."""
    running: int = 0
    is_in_table: bool = False
    """Whether the store certainly knows it, and so will publish its end."""


def refusal(
    limits: TenantLimits, tenant: TenantUsage, program: ProgramUsage | None, body_bytes: int
) -> LimitError | None:
    """Return the error that refuses a request, None if it is admitted.

    One without a program costs no tokens, and is not compared with what is used of them.
    """
    if program is None:
        return _caps(limits, tenant, body_bytes) or _rate(limits, "requests", tenant.requests, 1.0)
    return (
        _budget(limits, "program", program.tokens, program.reserved_tokens)
        or _budget(limits, "day", tenant.day_tokens, tenant.reserved_tokens, tenant.day_left_s)
        or _caps(limits, tenant, body_bytes)
        or _rate(limits, "requests", tenant.requests, 1.0)
        or _rate(limits, "tokens", tenant.tokens, 0.0)
    )


def _budget(
    limits: TenantLimits, period: str, used: int, reserved: int, left_s: float | None = None
) -> LimitError | None:
    name = f"{period}_tokens"
    limit = getattr(limits, name)
    if limit is None or used + reserved < limit:
        return None
    code, what = {
        "program": ("program_budget_exceeded", "the program's budget"),
        "day": ("tenant_budget_exceeded", "today's budget (UTC)"),
    }[period]
    if used < limit:
        message = f"calls in flight may use up {what}: {used} and about {reserved} of {limit} tokens"
        return LimitError(code, "rate_limit_error", name, message, SOON_S)
    message = f"{what} is used up: {used} of {limit} tokens"
    return LimitError(code, "insufficient_quota", name, message, left_s)


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


def _rate(limits: TenantLimits, kind: str, bucket: Bucket | None, needed: float) -> LimitError | None:
    name = f"{kind}_per_minute"
    limit = getattr(limits, name)
    if limit is None or bucket is None or (wait_s := bucket.wait_s(needed, limit)) <= DUST_S:
        return None
    message = f"the rate limit of {limit:g} {kind} per minute is reached; retry in {wait_s:.3g} s"
    return LimitError("rate_limit_exceeded", kind, name, message, wait_s)


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
