"""Tenants' limits over all workers of one address."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.workers.links import link_pair, make_hub, workers_of
from tests.observe.settled_calls import settled_call

from autellix_backend.gateway.errors import LimitError, ParentSilentError
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.gateway.workers.limits import SharedLimiter
from autellix_backend.gateway.workers.link import Link
from autellix_backend.settings import TenantLimits

TENANT = Tenant(name="t", limits=TenantLimits(max_calls=2, program_calls=3))


def limiter(link: Link, refusals: list[tuple[str, str]] | None = None) -> SharedLimiter:
    counted = [] if refusals is None else refusals
    return SharedLimiter(link, on_refusal=lambda tenant, code: counted.append((tenant, code)))


async def test_a_limit_holds_over_all_workers() -> None:
    refusals: list[tuple[str, str]] = []
    async with workers_of(make_hub(2), 1, 2) as links:
        first, second = limiter(links[0], refusals), limiter(links[1])
        await first.reserve(TENANT, "a", "p", 10, 0.0)
        await second.reserve(TENANT, "b", "p", 10, 0.0)
        with pytest.raises(LimitError, match=r"at most 2 calls in flight .* make 3") as refused:
            await first.reserve(TENANT, "c", "p", 10, 0.0)
        assert refused.value.code == "too_many_calls"
        assert refused.value.headers["retry-after"] == "1"
        assert refusals == [("t", "too_many_calls")]

        # One ends at the other worker, and one could not start.
        second.on_call_settled(settled_call(key="b", program_id="p"))
        second.on_program_ended("unknown")
        await second.reserve(TENANT, "d", "p", 10, 0.0)
        second.release("d", 0.0)
        await second.reserve(TENANT, "e", "p", 10, 0.0)
        with pytest.raises(LimitError, match="at most 2 calls"):
            await first.reserve(TENANT, "f", "other", 10, 0.0)


async def test_a_programs_budget_holds_over_all_workers() -> None:
    async with workers_of(make_hub(2), 1, 2) as links:
        first, second = limiter(links[0]), limiter(links[1])
        for number, shared in enumerate((first, second, first)):
            await shared.reserve(TENANT, str(number), "p", 10, 0.0)
            shared.on_call_settled(settled_call(key=str(number), program_id="p"))
            # What one worker told is known before the other asks.
            await shared.reserve(TENANT, f"probe-{number}", f"probe-{number}", 1, 0.0)
            shared.release(f"probe-{number}", 0.0)
        with pytest.raises(LimitError, match="3 of 3 calls"):
            await first.reserve(TENANT, "4", "p", 10, 0.0)


async def test_the_answer_has_the_rate_limits_headers() -> None:
    rated = Tenant(name="t", limits=TenantLimits(requests_per_minute=2))
    async with workers_of(make_hub(2), 1, 2) as links:
        first, second = limiter(links[0]), limiter(links[1])
        assert (await first.reserve(rated, "a", "p", 1, 0.0))["x-ratelimit-remaining-requests"] == "1"
        assert (await second.reserve(rated, "b", "p", 1, 0.0))["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(LimitError) as refused:
            await first.reserve(rated, "c", "p", 1, 0.0)
        assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"


async def test_the_calls_of_a_worker_that_died_are_given_back() -> None:
    hub = make_hub(2)
    async with workers_of(hub, 2) as (second,):
        async with workers_of(hub, 1) as (first,):
            await limiter(first).reserve(TENANT, "a", "p", 10, 0.0)
            await limiter(first).reserve(TENANT, "b", "p", 10, 0.0)
        await limiter(second).reserve(TENANT, "c", "p", 10, 0.0)
        await limiter(second).reserve(TENANT, "d", "q", 10, 0.0)


async def test_a_tenant_without_limits_asks_nobody() -> None:
    async with link_pair() as (worker, parent):
        del parent
        assert await limiter(worker).reserve(Tenant(name="t"), "a", "p", 10, 0.0) == {}


async def test_the_bytes_of_calls_are_limited_over_all_workers() -> None:
    small = Tenant(name="t", limits=TenantLimits(max_call_bytes=100))
    async with workers_of(make_hub(1), 1) as (link,):
        shared = limiter(link)
        await shared.reserve(small, "a", "p", 60, 0.0)
        assert shared.call_bytes("t") == 60
        with pytest.raises(LimitError, match="bytes of calls"):
            await shared.reserve(small, "b", "p", 60, 0.0)
        shared.release("a", 0.0)
        assert shared.call_bytes("t") == 0


async def test_a_parent_that_is_gone_admits_nothing() -> None:
    async with link_pair() as (worker, parent):
        parent.close()
        shared = limiter(worker)
        with pytest.raises(ParentSilentError):
            await shared.reserve(TENANT, "a", "p", 10, 0.0)
        assert shared.call_bytes("t") == 0


async def test_a_call_that_is_given_up_while_it_asks_is_released() -> None:
    asked = asyncio.Event()
    told: list[str] = []
    cancelled = asyncio.Event()

    async def never(_content: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    def on_cancel(call_key: str) -> None:
        told.append(call_key)
        cancelled.set()

    async with link_pair() as (worker, parent):
        parent.handlers |= {"admit": never, "cancel": on_cancel}
        asking = asyncio.create_task(limiter(worker).reserve(TENANT, "a", "p", 10, 0.0))
        await asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await cancelled.wait()
    assert told == ["a"]
