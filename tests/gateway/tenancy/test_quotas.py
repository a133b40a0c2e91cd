"""Limits: the arithmetic, what is remembered of it, and what clients see of each."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fakes.engine import FakeBehaviour, Fault
from tests.gateway.usage import check_usage, counted_programs

from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.errors import EngineUnavailableError, LimitError
from autellix_backend.gateway.tenancy.limiter import Demand, Limiter
from autellix_backend.gateway.tenancy.quotas import (
    DAY_S,
    FIRST_OUTPUT_TOKENS,
    Bucket,
    ProgramUsage,
    TenantUsage,
    capacity,
    duration_text,
    refusal,
)
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.settings import TenantLimits
from autellix_backend.stores.base import CallEnd, CallStart
from autellix_backend.stores.memory import MemoryStore

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}
RATES = st.floats(0.5, 600.0)
STEPS_S = st.floats(0.0, 30.0)
KEYS = itertools.count()
UNTIMED = settings(deadline=None)


def make_limiter(refusals: list[tuple[str, str]] | None = None) -> Limiter:
    noted = [] if refusals is None else refusals
    return Limiter(epoch_s=0.0, on_refusal=lambda *refused: noted.append(refused))


def admit(limiter: Limiter, tenant: Tenant, program: str = "p", now: float = 0.0, size: int = 1) -> str:
    """Admit a call; return its key."""
    call_key = f"call-{next(KEYS)}"
    limiter.admit(tenant, call_key, program, Demand(size, most_output_tokens=1), now)
    return call_key


def charge(limiter: Limiter, call_key: str, now: float = 0.0, **changes: Any) -> None:
    limiter.charge(call_key, now, **changes)


@UNTIMED
@given(per_minute=RATES, steps=st.lists(STEPS_S, min_size=1, max_size=60))
def test_over_any_window_no_more_requests_pass_than_the_bucket_and_its_filling(
    per_minute: float, steps: list[float]
) -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(requests_per_minute=per_minute))
    passed_at_s: list[float] = []
    now = 0.0
    for step_s in steps:
        now += step_s
        try:
            charge(limiter, admit(limiter, tenant, now=now), now)
        except LimitError as error:
            # A retry after `Retry-After` is admitted.
            wait_ms = int(error.headers["retry-after-ms"])
            now += wait_ms / 1000
            charge(limiter, admit(limiter, tenant, now=now), now)
        passed_at_s.append(now)
    for first, start_s in enumerate(passed_at_s):
        for last in range(first, len(passed_at_s)):
            window_s = passed_at_s[last] - start_s
            assert last - first + 1 <= capacity(per_minute) + per_minute * window_s / 60 + 1e-6


@UNTIMED
@given(per_minute=st.floats(10.0, 1e6), calls=st.lists(st.tuples(STEPS_S, st.integers(0, 5000)), max_size=60))
def test_tokens_pass_up_to_the_bucket_its_filling_and_one_call(
    per_minute: float, calls: list[tuple[float, int]]
) -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(tokens_per_minute=per_minute))
    now, total = 0.0, 0
    for step_s, tokens in calls:
        now += step_s
        try:
            call_key = admit(limiter, tenant, now=now)
        except LimitError as error:
            assert float(error.headers["retry-after-ms"]) > 0
            continue
        charge(limiter, call_key, now, tokens=tokens)
        total += tokens
        assert total - tokens <= per_minute + per_minute * now / 60 + 1e-6


@pytest.mark.parametrize(
    ("limit", "tenant", "program_tokens", "code", "retry_after_s"),
    [
        ({"program_tokens": 9}, {}, 9, "program_budget_exceeded", None),
        ({"day_tokens": 9}, {"day_tokens": 9, "day_left_s": 77.0}, 0, "tenant_budget_exceeded", 77.0),
        ({"max_calls": 2}, {"calls": 2}, 0, "too_many_calls", 1.0),
        ({"max_call_bytes": 20}, {"call_bytes": 11}, 0, "too_many_call_bytes", 1.0),
    ],
)
def test_each_limit_refuses_at_its_bound_and_not_below(
    limit: dict[str, Any],
    tenant: dict[str, Any],
    program_tokens: int,
    code: str,
    retry_after_s: float | None,
) -> None:
    program = ProgramUsage(tokens=program_tokens)
    error = refusal(TenantLimits(**limit), TenantUsage(**tenant), program, 10)
    assert error is not None
    assert (error.code, error.param) == (code, f"limits.{next(iter(limit))}")
    retry_after = None if retry_after_s is None else str(int(retry_after_s))
    assert error.headers.get("retry-after") == retry_after
    should_retry = retry_after_s is not None and retry_after_s <= 60
    assert error.headers["x-should-retry"] == str(should_retry).lower()
    looser = {name: value + 1 for name, value in limit.items()}
    assert refusal(TenantLimits(**looser), TenantUsage(**tenant), program, 10) is None
    assert refusal(TenantLimits(), TenantUsage(**tenant), program, 10) is None


@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_a_rate_needs_both_its_limit_and_its_bucket(kind: str) -> None:
    """An operator may remove the limit of a tenant in debt, or set the first limit of a known one."""
    limit: dict[str, Any] = {f"{kind}_per_minute": 60.0}
    bucket: dict[str, Any] = {kind: Bucket(-5.0, 0.0)}
    limits, usage = TenantLimits(**limit), TenantUsage(**bucket)
    error = refusal(limits, usage, ProgramUsage(), 10)
    assert error is not None
    assert error.param == f"limits.{kind}_per_minute"
    assert refusal(TenantLimits(), usage, ProgramUsage(), 10) is None
    assert refusal(limits, TenantUsage(), ProgramUsage(), 10) is None


def test_a_refund_never_overfills_the_bucket() -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(requests_per_minute=2))
    call_key = admit(limiter, tenant)
    # The bucket is full again by now.
    charge(limiter, call_key, 3600.0, is_refunded=True)
    for _ in range(2):
        charge(limiter, admit(limiter, tenant, now=3600.0), 3600.0)
    with pytest.raises(LimitError):
        admit(limiter, tenant, now=3600.0)


def test_a_daily_budget_resets_at_midnight() -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(day_tokens=10))
    evening_s = DAY_S - 30
    charge(limiter, admit(limiter, tenant, now=evening_s), evening_s, tokens=10)
    with pytest.raises(LimitError) as caught:
        admit(limiter, tenant, now=evening_s)
    assert caught.value.headers["retry-after"] == "30"
    assert admit(limiter, tenant, now=DAY_S)


@pytest.mark.parametrize("budget", ["day_tokens", "program_tokens"])
def test_calls_in_flight_reserve_their_share_of_a_budget(budget: str) -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(**{budget: 100}))
    keys = []
    with pytest.raises(LimitError) as caught:
        for number in range(200):
            limiter.admit(tenant, f"{number}", "p", Demand(1, 5, 7), 0.0)
            keys.append(f"{number}")
    # The last one that is admitted may exceed it.
    assert len(keys) == 9
    assert (caught.value.param, caught.value.headers["x-should-retry"]) == (f"limits.{budget}", "true")
    for key in keys:
        charge(limiter, key, tokens=11)
    # What they did not use is free again, and nothing stays reserved.
    limiter.admit(tenant, "next", "p", Demand(1, 5, 7), 0.0)
    charge(limiter, "next", tokens=1)
    with pytest.raises(LimitError) as caught:
        admit(limiter, tenant)
    assert caught.value.headers["x-should-retry"] == "false"


def test_the_output_of_a_call_without_a_bound_is_estimated_by_the_last_ones() -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(day_tokens=10_000))

    def admitted() -> int:
        keys: list[str] = []
        try:
            while True:
                limiter.admit(tenant, f"{len(keys)}", f"p{len(keys)}", Demand(1), 0.0)
                keys.append(f"{len(keys)}")
        except LimitError:
            for key in keys:
                limiter.release(key, 0.0)
        return len(keys)

    assert admitted() == -(-10_000 // FIRST_OUTPUT_TOKENS)
    for _ in range(3):
        charge(limiter, admit(limiter, tenant), tokens=1000)
    assert admitted() == 7


@pytest.mark.parametrize(
    ("most", "output", "learned"), [(1, 1, 256), (None, 1, 1), (9, 1, 1), (900, 900, 900)]
)
def test_answers_cut_short_by_their_calls_leave_the_estimate(
    most: int | None, output: int, learned: int
) -> None:
    """A tenant could have 50 answers of one token before a burst of long ones."""
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(day_tokens=100_000))
    for number in range(50):
        limiter.admit(tenant, f"{number}", "p", Demand(1, 5, most), 0.0)
        charge(limiter, f"{number}", tokens=5 + output)
    limiter.admit(tenant, "long", "p", Demand(1, 5, 1_000), 0.0)
    assert limiter._tenants[""].reserved_tokens == 5 + learned


def test_a_pass_through_counts_as_a_request_and_costs_no_tokens() -> None:
    limits = TenantLimits(requests_per_minute=1, day_tokens=1, program_tokens=1, max_calls=1)
    limiter, tenant = make_limiter(), Tenant(limits=limits)
    charge(limiter, admit(limiter, tenant), 0.0, tokens=9)
    now = 60.0
    with limiter.counting(tenant, lambda: now) as headers:
        assert headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(LimitError, match="max_calls"), limiter.counting(tenant, lambda: now):
            pass
    with pytest.raises(LimitError, match="requests_per_minute"), limiter.counting(tenant, lambda: now):
        pass
    now = 120.0
    with pytest.raises(EngineUnavailableError), limiter.counting(tenant, lambda: now):
        raise EngineUnavailableError("gone")
    # It is refunded.
    with limiter.counting(tenant, lambda: now):
        check_usage(limiter)


async def test_gateways_share_what_is_used_of_a_day() -> None:
    totals: dict[int, Counter[str]] = defaultdict(Counter)

    async def spend(day: int, tokens: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        for name, (added, known) in tokens.items():
            totals[day][name] = max(totals[day][name], known) + added
        return {name: totals[day][name] for name in tokens}

    async def no_store(_day: int, _tokens: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        return {}

    tenant = Tenant(name="t", limits=TenantLimits(day_tokens=20))
    one, other = make_limiter(), make_limiter()
    charge(one, admit(one, tenant), tokens=15)
    await one.share(no_store, 0.0)
    await one.share(spend, 0.0)
    await one.share(spend, 0.0)
    assert totals == {0: {"t": 15}}
    charge(other, admit(other, tenant), tokens=4)
    await other.share(spend, 0.0)
    charge(other, admit(other, tenant), tokens=4)
    with pytest.raises(LimitError):
        admit(other, tenant)
    # One that has restarted knows it before the first call.
    restarted = make_limiter()
    await restarted.share(spend, 0.0, {"t"})
    charge(restarted, admit(restarted, tenant), tokens=0)
    await other.share(spend, 0.0)
    await restarted.share(spend, 0.0)
    with pytest.raises(LimitError):
        admit(restarted, tenant)
    # So does a store that was lost.
    totals.clear()
    for limiter in (one, other, restarted):
        await limiter.share(spend, 0.0)
    assert totals == {0: {"t": 23}}
    with pytest.raises(LimitError):
        admit(restarted, tenant)
    assert admit(restarted, tenant, now=DAY_S)


def test_a_restarted_gateway_learns_what_a_program_has_used() -> None:
    limiter, tenant = make_limiter(), Tenant(limits=TenantLimits(program_tokens=20))
    call_key = admit(limiter, tenant)
    limiter.on_begun("p", 25)
    charge(limiter, call_key)
    with pytest.raises(LimitError):
        admit(limiter, tenant)


def test_a_duration_has_openais_format() -> None:
    texts = [duration_text(seconds) for seconds in (0.0, 0.1204, 1.0, 7.5, 59.999, 360.0, 3661.25)]
    assert texts == ["0ms", "121ms", "1s", "7.5s", "1m0s", "6m0s", "61m1.25s"]


class LimiterBesideStore(RuleBasedStateMachine):
    """Random lives of programs: the limiter holds the programs that the store holds, and nothing else."""

    ids = st.sampled_from("ab")
    sessions = st.sampled_from(["s", "t", None])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limiter = make_limiter()
        self.tenant = Tenant(limits=TenantLimits(max_calls=1000))
        self.store = MemoryStore(make_policy("plas"), program_idle_s=10.0, session_ttl_s=1e9)
        self.store.subscribe(lambda ended: self.limiter.on_program_ended(ended.program_id))
        self.running: list[tuple[Any, str]] = []

    @rule(program=ids, session=sessions)
    def begin(self, program: str, session: str | None) -> None:
        call_key = admit(self.limiter, self.tenant, program, self.now, 3)
        start = CallStart(
            key=f"{self.now}-{len(self.running)}-{call_key}",
            call_id="c",
            program_id=program,
            session_id=session,
        )
        asyncio.run(self.store.begin(start, self.now))
        self.running.append((start, call_key))

    @rule(program=ids)
    def begin_in_vain(self, program: str) -> None:
        self.limiter.release(admit(self.limiter, self.tenant, program, self.now, 3), self.now)

    @rule(data=st.data(), is_final=st.booleans(), is_refunded=st.booleans())
    def settle(self, data: Any, is_final: bool, is_refunded: bool) -> None:
        if not self.running:
            return
        number = data.draw(st.integers(0, len(self.running) - 1))
        self.settle_one(number, is_final=is_final, is_refunded=is_refunded)

    def settle_one(self, number: int, *, is_final: bool, is_refunded: bool) -> None:
        start, call_key = self.running.pop(number)
        charge(self.limiter, call_key, self.now, tokens=5, is_refunded=is_refunded)
        end = CallEnd(
            key=start.key,
            program_id=start.program_id,
            outcome="ok",
            services_s=(0.1,),
            wait_s=0.0,
            table_wait_s=0.0,
            inherited_service_s=0.0,
            is_estimated=False,
            is_final=is_final,
        )
        asyncio.run(self.store.settle(end, self.now))

    @rule(program=ids)
    def end_program(self, program: str) -> None:
        asyncio.run(self.store.end_program(program, self.now))

    @rule(session=sessions)
    def end_session(self, session: str | None) -> None:
        if session is not None:
            asyncio.run(self.store.close_session(session, self.now))

    @rule(step_s=st.floats(0.0, 12.0))
    def pass_time(self, step_s: float) -> None:
        self.now += step_s
        asyncio.run(self.store.reap(self.now))

    @invariant()
    def holds_what_the_store_holds(self) -> None:
        check_usage(self.limiter)
        assert counted_programs(self.limiter) == asyncio.run(self.store.counts()).programs

    def teardown(self) -> None:
        while self.running:
            self.settle_one(0, is_final=True, is_refunded=False)
        self.now += 100.0
        asyncio.run(self.store.reap(self.now))
        check_usage(self.limiter)
        assert counted_programs(self.limiter) == 0


TestLimiterBesideStore = LimiterBesideStore.TestCase
TestLimiterBesideStore.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize(
    ("limits", "second", "code", "should_retry"),
    [
        ({"requests_per_minute": 1}, "p", "rate_limit_exceeded", True),
        ({"requests_per_minute": 0.5}, "p", "rate_limit_exceeded", False),
        ({"tokens_per_minute": 2}, "p", "rate_limit_exceeded", False),
        ({"program_tokens": 2}, "p", "program_budget_exceeded", False),
        ({"day_tokens": 2}, "q", "tenant_budget_exceeded", False),
    ],
)
async def test_the_official_client_learns_each_limit(
    serve: Any, limits: dict[str, Any], second: str, code: str, should_retry: bool
) -> None:
    async with (
        serve(limits=TenantLimits(**limits)) as rig,
        openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        await client.chat.completions.create(**HELLO, extra_headers={"X-Autellix-Program-ID": "p"})
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**HELLO, extra_headers={"X-Autellix-Program-ID": second})
        assert (caught.value.code, caught.value.param) == (code, f"limits.{next(iter(limits))}")
        headers = caught.value.response.headers
        assert headers["x-should-retry"] == str(should_retry).lower()
        assert ("retry-after" in headers) == (code != "program_budget_exceeded")
        assert len(rig.engine.calls) == 1
        async with rig.client.get(rig.url + "/metrics") as response:
            page = await response.text()
        assert f'autellix_refusals_total{{reason="{code}",tenant=""}} 1.0' in page


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"max_calls": 1}, "too_many_calls"), ({"max_call_bytes": 150}, "too_many_call_bytes")],
)
@pytest.mark.parametrize("is_streaming", [False, True])
async def test_calls_in_flight_are_bounded_until_they_end_or_their_clients_go(
    serve: Any, wait_until: Any, limits: dict[str, Any], code: str, is_streaming: bool
) -> None:
    behaviour = FakeBehaviour(output_tokens=10_000, token_delay_s=0.01)
    async with serve(behaviour, limits=TenantLimits(**limits)) as rig:

        async def call() -> None:
            body = {**HELLO, "stream": is_streaming}
            async with rig.client.post(rig.url + CHAT, json=body) as response:
                await response.read()

        task = asyncio.create_task(call())
        await wait_until(lambda: len(rig.engine.calls) == 1)
        async with rig.client.post(rig.url + CHAT, json=HELLO) as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == code
            assert response.headers["retry-after"] == "1"
        task.cancel()
        await asyncio.wait((task,))
        await rig.settled()
        rig.engine.behaviour = FakeBehaviour()
        assert "choices" in await rig.chat()


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.RESET_BEFORE_FIRST_BYTE])
async def test_calls_that_an_engine_has_read_are_not_refunded(serve: Any, fault: Fault) -> None:
    limits = TenantLimits(requests_per_minute=1)
    async with serve(FakeBehaviour(fault=fault), limits=limits) as rig:
        await rig.chat()
        rig.engine.behaviour = FakeBehaviour()
        assert (await rig.chat())["error"]["code"] == "rate_limit_exceeded"


async def test_calls_that_no_engine_accepted_are_refunded(serve: Any) -> None:
    limits = TenantLimits(requests_per_minute=1)
    async with serve(limits=limits, engine_settings={"max_restarts": 0}) as rig:
        await rig.engine.kill("exit status 139")
        for _ in range(2):
            assert (await rig.chat())["error"]["code"] == "engine_unavailable"


async def test_answers_have_the_remaining_rate_limits(serve: Any) -> None:
    limits = TenantLimits(requests_per_minute=60, tokens_per_minute=6000)
    # On a clock that stands, no bucket is refilled between the calls.
    async with serve(limits=limits, clock=lambda: 0.0) as rig:
        for is_streaming in (False, True):
            body = {**HELLO, "stream": is_streaming}
            async with rig.client.post(rig.url + CHAT, json=body) as response:
                await response.read()
                headers = response.headers
        assert headers["x-ratelimit-limit-requests"] == "60"
        assert headers["x-ratelimit-remaining-requests"] == "58"
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert headers["x-ratelimit-limit-tokens"] == "6000"
        assert int(headers["x-ratelimit-remaining-tokens"]) < 6000


async def test_without_limits_no_headers_are_sent_and_nothing_is_kept(serve: Any) -> None:
    async with serve() as rig, rig.client.post(rig.url + CHAT, json=HELLO) as response:
        assert not [name for name in response.headers if name.lower().startswith("x-ratelimit")]
        assert rig.limiter is None


async def test_ended_programs_and_sessions_leave_no_usage(serve: Any) -> None:
    async with serve(limits=TenantLimits(max_calls=9)) as rig:

        async def call(**ids: str) -> None:
            headers = {f"X-Autellix-{name}": value for name, value in ids.items()}
            async with rig.client.post(rig.url + CHAT, json=HELLO, headers=headers) as response:
                assert response.status == 200

        await call(**{"Program-ID": "a"})
        assert counted_programs(rig.limiter) == 1
        async with rig.client.delete(rig.url + "/autellix/v1/programs/a") as response:
            assert response.status == 204
        await call(**{"Program-ID": "b", "Final": "true"})
        sessions = rig.url + "/autellix/v1/sessions"
        async with rig.client.post(sessions, json={"session_id": "s"}) as response:
            assert response.status == 201
        await call(**{"Session-ID": "s"})
        assert counted_programs(rig.limiter) == 1
        async with rig.client.delete(sessions + "/s") as response:
            assert response.status == 204
        # Without an id a program is one request.
        for _ in range(3):
            await call()
        assert counted_programs(rig.limiter) == 0
