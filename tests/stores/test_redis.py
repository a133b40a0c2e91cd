"""Several gateways on one table in Redis, without copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from tests.redis_server import RedisServer
from tests.stores.tables import LEASE_S, SESSION_TTL_S, Table, all_programs, check, end, start

from autellix_backend.core.errors import UnknownCallError
from autellix_backend.stores.base import Counts, ProgramEnd, Reaped, program_work
from autellix_backend.stores.redis import MAX_NAMES, MAX_REAPED
from autellix_backend.stores.redis_scripts import NotMemberError
from autellix_backend.stores.table_clock import TableClock


@pytest.fixture
async def shared(redis_server: RedisServer) -> AsyncIterator[Table]:
    """Yield an empty table of stores without copies."""
    found = Table("redis", redis_server.url)
    yield found
    await found.close()


async def test_a_program_is_one_whatever_gateways_its_calls_go_through(shared: Table) -> None:
    one, other = await shared.open(), await shared.open()
    await one.begin(start("a"), 0.0)
    await one.settle(end("a", 3.0), 1.0)
    assert (await other.begin(start("b"), 2.0)).service_s == 3.0
    expected = Counts(programs=1, sessions=0, active_calls=1, active_programs=1)
    assert await one.counts() == await other.counts() == expected


async def test_the_calls_of_a_gateway_without_lease_are_lost_and_settled_once(shared: Table) -> None:
    one, other = await shared.open(), await shared.open()
    for number in range(3):
        await one.begin(start(f"{number}", "p", "s"), 0.0)
    await other.reap(LEASE_S - 1)
    assert (await other.counts()).active_calls == 3
    await other.reap(LEASE_S + 1)
    view = await other.program("p")
    assert {call.end.outcome for call in view.calls} == {"lost"}
    assert (view.active_calls, view.finished_calls, view.service_s) == (0, 3, 0.0)
    with pytest.raises(NotMemberError):
        await one.settle(end("0", 1.0), LEASE_S + 2)
    await one.open()
    with pytest.raises(UnknownCallError):
        await one.settle(end("0", 1.0), LEASE_S + 3)
    check(one)


async def test_a_gateway_keeps_its_calls_by_reaping(shared: Table) -> None:
    one, other = await shared.open(), await shared.open()
    await one.begin(start("a"), 0.0)
    for now in (LEASE_S / 2, LEASE_S):
        await one.reap(now)
    await other.reap(LEASE_S + 1)
    await one.settle(end("a", 1.0), LEASE_S + 2)


async def test_a_returning_gateway_keeps_its_calls_and_its_old_commands_are_refused(shared: Table) -> None:
    one, other = await shared.open(), await shared.open()
    await one.begin(start("a"), 0.0)
    before = one._gateway
    await one.open()
    with pytest.raises(NotMemberError):
        await one._scripts.run("end", before, "p")
    await one.settle(end("a", 1.0, is_final=True), 1.0)
    assert await other.counts() == Counts(programs=0, sessions=0, active_calls=0)
    check(one)


@pytest.mark.parametrize(
    ("policy", "max_bytes", "warns"),
    [
        ("allkeys-lru", 2**30, True),
        ("volatile-ttl", 2**30, True),
        ("noeviction", 2**30, False),
        ("allkeys-lru", 0, False),
    ],
)
async def test_a_server_that_removes_keys_when_it_is_full_is_named_in_the_log(
    shared: Table,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    *,
    policy: str,
    max_bytes: int,
    warns: bool,
) -> None:
    """Once by each gateway, with the policy; without a bound of its memory it removes none."""
    with redis.Redis.from_url(redis_server.url) as admin:
        admin.config_set("maxmemory", max_bytes)
        admin.config_set("maxmemory-policy", policy)
        try:
            store = await shared.open()
            await store.open()
        finally:
            admin.config_set("maxmemory", 0)
            admin.config_set("maxmemory-policy", "noeviction")
    told = [record.getMessage() for record in caplog.records if "maxmemory-policy" in record.getMessage()]
    assert len(told) == warns
    assert all(f"maxmemory-policy {policy}" in line for line in told)


async def test_what_tenants_use_of_a_day_is_added_up_over_gateways_and_restarts(
    shared: Table, redis_server: RedisServer
) -> None:
    one, other = await shared.open(), await shared.open()
    used = {"a": (15, 0), "b": (0, 0), "": (10**15, 0)}
    assert await one.spend(20_000, used) == {"a": 15, "b": 0, "": 10**15}
    assert await other.spend(20_000, {"a": (4, 0)}) == {"a": 19}
    await other.close()
    later = await shared.open()
    assert await later.spend(20_000, {"b": (2, 0), "a": (0, 15)}) == {"b": 2, "a": 19}
    # It goes on from what a gateway remembers, if that is more.
    assert await later.spend(20_000, {"a": (1, 30)}) == {"a": 31}
    assert await later.spend(20_001, {"a": (0, 0)}) == {"a": 0}
    async with Redis.from_url(redis_server.url) as client:
        assert all([0 < await client.ttl(key) <= 2 * 86400 async for key in client.scan_iter("*:u:*")])


async def test_a_call_learns_the_tokens_of_its_program(shared: Table) -> None:
    one, other = await shared.open(), await shared.open()
    await one.begin(start("a"), 0.0)
    await one.settle(end("a", 3.0, prompt_tokens=20, output_tokens=5), 1.0)
    assert (await other.begin(start("b"), 2.0)).tokens == 25


async def test_stale_entries_are_reported_by_one_gateway_only(shared: Table) -> None:
    stores = [await shared.open() for _ in range(4)]
    count = MAX_REAPED + 20
    await asyncio.gather(*(stores[0].open_session(f"s{number}", 0.0) for number in range(count)))
    await asyncio.gather(*(store.reap(15.0) for store in stores))
    rounds: list[Reaped] = await asyncio.gather(*(store.reap(31.0) for store in stores))
    told = [name for reaped in rounds for name in reaped.sessions]
    assert sorted(told) == sorted(f"s{number}" for number in range(count))


async def test_other_gateways_receive_ends(shared: Table) -> None:
    one, other = await shared.open(), await shared.open()
    heard: list[str] = []
    other.subscribe(lambda ended: heard.append(ended.program_id))
    names = [f"p{number}" for number in range(30)]
    for name in names:
        await one.begin(start(name, name, name="chat"), 0.0)
        await one.settle(end(name, 4.0, program=name, is_final=True), 1.0)
    await other.reap(2.0)
    await other.reap(3.0)
    assert heard == names


async def test_a_new_gateway_reads_the_latest_ends(shared: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autellix_backend.stores.redis.MAX_ENDS", 2)
    one = await shared.open()
    heard: list[ProgramEnd] = []
    one.subscribe(heard.append)
    for number in range(4):
        await one.begin(start("k", f"p{number}", class_id="/chat"), 0.0)
        await one.settle(end("k", 1.0, program=f"p{number}", output_tokens=1, is_final=True), 1.0)
    other = await shared.open()
    assert await other.recent_ends() == heard
    assert len(heard) == 4
    # What ends from then on is published.
    await one.begin(start("k", "later"), 2.0)
    await one.settle(end("k", 1.0, program="later", is_final=True), 2.0)
    assert await other.recent_ends() == heard[:-1]


async def test_what_nothing_identified_ends_without_work_at_every_gateway(shared: Table) -> None:
    """Also at one that starts later."""
    one, other = await shared.open(), await shared.open()
    heard: list[ProgramEnd] = []
    other.subscribe(heard.append)
    await one.begin(start("k", "single", class_id="/chat", is_identified=False), 0.0)
    await one.settle(end("k", 1.0, program="single", output_tokens=1, is_final=True), 1.0)
    await other.reap(2.0)
    assert heard == [ProgramEnd(program_id="single", class_id="/chat")]
    assert await (await shared.open()).recent_ends() == heard


async def test_gateways_of_0_2_on_the_table_read_ends_as_we_do(
    shared: Table, redis_server: RedisServer
) -> None:
    """They read the values by position, and write one that only they have."""
    head = ("program", "name", "total_service_s", "finished_calls", "class_id", "first_prompt_tokens")
    names = (*head, "prompt_tokens", "cached_tokens", "output_tokens")
    one = await shared.open()
    heard: list[ProgramEnd] = []
    one.subscribe(heard.append)
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        stream = f"{one._scripts.tag}:ends"
        await client.xadd(
            stream, dict(zip(names, ("p", "", "4.0", "1", "/chat", "7", "3", "1", "2"), strict=True))
        )
        await one.reap(1.0)
        await one.begin(start("k", "q", class_id="/chat"), 2.0)
        await one.settle(end("k", 1.0, program="q", output_tokens=1, is_final=True), 2.0)
        entries: Any = await client.xrange(stream)
    assert [(each.program_id, each.class_id) for each in heard] == [("p", "/chat"), ("q", "/chat")]
    assert heard[0].work == program_work(3, 1, 2)
    assert [tuple(fields) for _, fields in entries] == [names, names]
    assert sorted(await (await shared.open()).recent_ends()) == sorted(heard)


async def test_the_ends_that_each_gateway_reads_take_no_scripts(
    shared: Table, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autellix_backend.stores.redis.MAX_ENDS", 2)
    one, other = await shared.open(), await shared.open()
    heard: list[ProgramEnd] = []
    other.subscribe(heard.append)
    for number in range(5):
        await one.begin(start("k", f"p{number}"), 0.0)
        await one.settle(end("k", 1.0, program=f"p{number}", is_final=True), 1.0)
    async with Redis.from_url(redis_server.url) as client:
        await client.config_resetstat()
        await other.reap(2.0)
        commands = await client.info("commandstats")
    assert [each.program_id for each in heard] == [f"p{number}" for number in range(5)]
    assert commands["cmdstat_evalsha"]["calls"] == 1
    assert commands["cmdstat_xrange"]["calls"] == 3


async def test_scripts_that_the_server_lost_are_sent_again(shared: Table, redis_server: RedisServer) -> None:
    store = await shared.open()
    await store.begin(start("a"), 0.0)
    async with Redis.from_url(redis_server.url) as client:
        await client.script_flush()
    await asyncio.gather(store.settle(end("a", 1.0), 1.0), store.begin(start("b"), 1.0))
    assert (await store.program("p")).finished_calls == 1


async def test_times_of_another_clock_are_converted(shared: Table) -> None:
    young, old = TableClock(lambda: 100.0), TableClock(lambda: 5000.0)
    one, other = await shared.open(clock=young), await shared.open(clock=old)
    await one.begin(start("a"), 90.0)
    view = await other.program("p")
    # The clocks were read one after the other, so a little time lies between.
    assert view.first_arrival_s == pytest.approx(4990.0, abs=5.0)
    assert (await one.program("p")).first_arrival_s == pytest.approx(90.0, abs=1e-3)


async def test_a_session_of_many_programs_ends_in_steps(
    shared: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the steps Redis serves others, and what a gateway leaves unfinished the reaper ends."""
    monkeypatch.setattr("autellix_backend.stores.redis.MAX_REAPED", 10)
    one, other = await shared.open(), await shared.open()
    await one.open_session("s", 0.0)
    for number in range(35):
        await one.begin(start("k", f"p{number}", "s"), 0.0)
        await one.settle(end("k", 1.0, program=f"p{number}"), 0.0)
    was_there, taken, gone = await one._scripts.run("close", one._gateway, "s", 10, "first")
    assert (was_there, taken, len(gone)) == (1, 10, 10)
    check(one)
    # The session is over; a new one of its id keeps what begins in it.
    assert await other.heartbeat("s", 0.0) is False
    assert await other.open_session("s", 0.0) is True
    await other.begin(start("k", "new", "s"), 0.0)
    await other.reap(0.0)
    assert [view.program_id for view in await all_programs(other)] == ["new"]
    assert await one.close_session("s", 0.0) is True
    assert await one.close_session("s", 0.0) is False
    check(one)


async def test_no_script_works_on_more_than_a_page(shared: Table) -> None:
    """The reply of each script shows how much Redis did at once."""
    store = await shared.open()
    await store.open_session("s", 0.0)
    count = 5 * MAX_REAPED

    async def use(program: str) -> None:
        await store.begin(start("k", program, "s"), 0.0)
        await store.settle(end("k", 1.0, program=program), 0.0)

    await asyncio.gather(*(use(f"p{number}") for number in range(count)))
    sizes: list[int] = []
    run = store._scripts.run

    async def measured(name: str, *arguments: Any) -> Any:
        answer = await run(name, *arguments)
        sizes.extend(len(part) for part in answer if isinstance(part, list))
        return answer

    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(store._scripts, "run", measured)
        assert len(await all_programs(store)) == count
        assert await store.close_session("s", 0.0) is True
    assert max(sizes) <= 2 * MAX_NAMES
    assert await store.counts() == Counts(programs=0, sessions=0, active_calls=0)


@pytest.mark.parametrize("leap_s", [3600, -7200])
async def test_a_leap_of_rediss_clock_ages_nothing(shared: Table, leap_s: float) -> None:
    """The table's time passes by Redis's clock, but never back, and never by much at once."""
    clock = TableClock(lambda: 100.0)
    store = await shared.open(clock=clock)
    await store.open_session("s", 100.0)
    await store.begin(start("a", session="s"), 100.0)
    await store.settle(end("a", 1.0), 100.0)
    before_s = clock.shared(0.0)
    # As if Redis's clock had gone the other way since the last look.
    with redis.Redis.from_url(store._scripts.url, protocol=2) as client:
        server_s = float(client.hget(f"{store._scripts.tag}:clock", "server"))
        client.hset(f"{store._scripts.tag}:clock", "server", repr(server_s - leap_s))
    late = TableClock(lambda: 100.0)
    other = await shared.open(clock=late)
    for one in (store, other):
        reaped = await one.reap(100.0)
        assert (reaped.programs, reaped.sessions) == ((), ())
    assert 0 <= clock.shared(0.0) - before_s < SESSION_TTL_S / 2
    assert abs(clock.shared(0.0) - late.shared(0.0)) < SESSION_TTL_S / 2
    view = await other.program("p")
    assert view is not None
    assert 0 <= 100.0 - view.last_event_s + SESSION_TTL_S / 2 < SESSION_TTL_S
