"""Gateways that lose the shared table, continue in memory, and return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from tests.redis_server import RedisServer, SentinelServer
from tests.stores.relay import Relay, relaying
from tests.stores.tables import LEASE_S, Table, all_programs, check, end, start
from tests.waiting import PATIENCE_S, until

from autellix_backend.core.errors import UnknownCallError
from autellix_backend.stores.base import Counts

SHORT_S = 1.0
EMPTY = Counts(programs=0, sessions=0, active_calls=0)


@pytest.fixture
async def shared(redis_server: RedisServer) -> AsyncIterator[Table]:
    """Yield an empty table."""
    found = Table("fallback", redis_server.url)
    yield found
    await found.close()


Pair = Callable[..., Any]


@pytest.fixture
def pair(shared: Table, redis_server: RedisServer) -> Pair:
    """Open two gateways; the first one's connection can be cut."""

    @asynccontextmanager
    async def opened(policy: str = "plas", **options: Any) -> AsyncIterator[tuple[Any, Any, Relay]]:
        async with relaying(redis_server.port) as relay:
            far = await shared.open(policy, url=relay.url, **options)
            yield far, await shared.open(policy), relay
            await far.close()

    return opened


async def returned(store: Any, now: float) -> None:
    """Run rounds of the reaper until the store is back."""
    async with asyncio.timeout(PATIENCE_S):
        await store.reap(now)
        while store.failure() is not None:
            await store.reap(now)


async def test_a_call_ends_in_the_table_in_which_it_began(shared: Table, pair: Pair) -> None:
    async with pair() as (far, near, relay):
        for key in ("done", "ends alone", "ends later"):
            await far.begin(start(key), 0.0)
        await far.settle(end("done", 1.0), 1.0)
        relay.cut()
        alone = await far.begin(start("alone"), 2.0)
        assert alone.service_s == 0.0
        await far.begin(start("alone too"), 2.0)
        await far.settle(end("ends alone", 2.0), 3.0)
        await far.settle(end("alone", 4.0), 3.0)
        assert (await near.program("p")).service_s == 1.0
        relay.mend()
        await returned(far, 4.0)
        await far.settle(end("ends later", 8.0), 5.0)
        await far.settle(end("alone too", 16.0), 5.0)
        view = await near.program("p")
        assert (view.service_s, view.finished_calls, view.active_calls) == (11.0, 3, 0)
        assert (await far.begin(start("after"), 6.0)).service_s == 11.0
        for key in ("done", "ends alone", "ends later", "alone", "alone too"):
            with pytest.raises(UnknownCallError):
                await far.settle(end(key, 1.0), 7.0)
        await asyncio.to_thread(check, far)


async def test_a_call_waits_for_a_silent_table_once_and_not_for_long(shared: Table, pair: Pair) -> None:
    fallbacks: list[None] = []
    async with pair(timeout_s=SHORT_S, on_fallback=lambda: fallbacks.append(None)) as (far, _, relay):
        relay.deafen()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(far.begin(start(f"{number}"), 0.0) for number in range(100)))
        assert "no answer" in str(far.failure())
        assert len(fallbacks) == 100
        begun = asyncio.create_task(far.begin(start("later"), 1.0))
        # One iteration of the event loop: the table is not asked.
        await asyncio.sleep(0)
        assert begun.done()
        await begun


async def test_a_frozen_server_is_joined_when_it_answers_again(
    own_server: RedisServer, own_table: Table
) -> None:
    own_server.start()
    store = await own_table.open(timeout_s=SHORT_S)
    await asyncio.gather(*(store.begin(start(f"{number}"), 0.0) for number in range(50)))
    own_server.freeze()
    await store.begin(start("alone"), 1.0)
    await asyncio.gather(*(store.settle(end(f"{number}", 1.0), 2.0) for number in range(50)))
    await store.settle(end("alone", 1.0), 2.0)
    own_server.thaw()
    await returned(store, 3.0)
    view = await store.program("p")
    # The call that Redis may have begun before it froze has ended there, at no cost.
    assert (view.service_s, view.active_calls) == (50.0, 0)
    await asyncio.to_thread(check, store)


@pytest.mark.parametrize("when", ["begin", "settle"])
async def test_a_call_whose_answer_got_lost_counts_once(shared: Table, pair: Pair, when: str) -> None:
    async with pair() as (far, near, relay):
        await far.begin(start("a"), 0.0)
        # A script that the server does not know yet would need a second message.
        await far.begin(start("other", "other"), 0.0)
        await far.settle(end("other", 1.0, program="other", is_final=True), 0.0)
        relay.lose_answers()
        if when == "begin":
            await far.begin(start("b"), 0.0)
            await far.settle(end("b", 5.0), 0.0)
        await far.settle(end("a", 3.0), 1.0)
        relay.mend()
        await returned(far, 2.0)
        view = await near.program("p")
        assert (view.service_s, view.active_calls) == (3.0, 0)
        await asyncio.to_thread(check, far)


@pytest.mark.parametrize("is_settling", [False, True])
async def test_a_cancelled_operation_leaves_no_running_call(
    shared: Table, pair: Pair, is_settling: bool
) -> None:
    async with pair() as (far, near, relay):
        if is_settling:
            await far.begin(start("a"), 0.0)
        relay.deafen()
        operation = far.settle(end("a", 3.0), 1.0) if is_settling else far.begin(start("a"), 0.0)
        task = asyncio.create_task(operation)

        async with asyncio.timeout(PATIENCE_S):
            while (await near.counts()).active_calls != int(not is_settling):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))
        relay.mend()
        await far.reap(2.0)
        assert (await near.program("p")).service_s == (3.0 if is_settling else 0.0)
        assert (await near.counts()).active_calls == 0


async def test_calls_counted_as_lost_stay_so(shared: Table, pair: Pair) -> None:
    async with pair() as (far, near, relay):
        await far.begin(start("a"), 0.0)
        await far.begin(start("b"), 0.0)
        relay.cut()
        await far.settle(end("a", 5.0), LEASE_S)
        await near.reap(LEASE_S + 1)
        relay.mend()
        await returned(far, LEASE_S + 2)
        await far.settle(end("b", 2.0), LEASE_S + 3)
        view = await near.program("p")
        assert [call.end.outcome for call in view.calls] == ["lost", "lost"]
        assert (view.service_s, view.active_calls) == (0.0, 0)
        await asyncio.to_thread(check, far)


@pytest.mark.parametrize("how", ["final", "deleted", "session"])
async def test_what_ends_during_an_outage_ends_in_the_shared_table(
    shared: Table, pair: Pair, how: str
) -> None:
    async with pair() as (far, near, relay):
        await far.open_session("s", 0.0)
        await far.begin(start("a", session="s"), 0.0)
        await far.settle(end("a", 1.0), 1.0)
        relay.cut()
        await far.begin(start("b", session="s"), 2.0)
        await far.settle(end("b", 1.0, is_final=how == "final"), 3.0)
        if how == "deleted":
            assert await far.end_program("p", 4.0) is True
        elif how == "session":
            assert await far.close_session("s", 4.0) is True
        assert await all_programs(far) == []
        relay.mend()
        await returned(far, 5.0)
        assert await all_programs(near) == []


async def test_programs_of_memory_end_when_the_table_is_back(shared: Table, pair: Pair) -> None:
    """Those that go on in the shared table are not published as ended."""
    async with pair() as (far, near, relay):
        ends: list[str] = []
        far.subscribe(lambda ended: ends.append(ended.program_id))
        await far.begin(start("a", "both"), 0.0)
        relay.cut()
        for program in ("both", "fresh", "busy"):
            await far.begin(start(program, program), 1.0)
        for program in ("both", "fresh"):
            await far.settle(end(program, 1.0, program=program), 2.0)
        relay.mend()
        await returned(far, 3.0)
        assert ends == ["fresh"]
        assert (await far.program("busy")).active_calls == 1
        await far.settle(end("busy", 1.0, program="busy"), 4.0)
        assert ends == ["fresh", "busy"]
        assert [view.program_id for view in await all_programs(near)] == ["both"]


async def test_a_session_of_memory_is_known_until_its_client_starts_it_again(
    shared: Table, pair: Pair
) -> None:
    async with pair() as (far, near, relay):
        relay.cut()
        assert await far.open_session("s", 0.0, "me") is True
        relay.mend()
        await returned(far, 1.0)
        assert await far.session_owner("s") == "me"
        assert await far.heartbeat("s", 2.0) is False
        assert await far.open_session("s", 2.0, "me") is True
        assert await near.session_owner("s") == "me"


async def test_a_table_that_comes_back_empty_is_filled_anew(
    own_server: RedisServer, own_table: Table
) -> None:
    own_server.start()
    store = await own_table.open()
    ends: list[str] = []
    store.subscribe(lambda ended: ends.append(ended.program_id))
    for key in ("before", "running"):
        await store.begin(start(key), 0.0)
    await store.settle(end("before", 1.0), 1.0)
    own_server.stop()
    await store.begin(start("alone"), 2.0)
    own_server.start()
    await returned(store, 3.0)
    assert ends == ["p"]
    assert await store.counts() == EMPTY
    for key in ("running", "alone"):
        await store.settle(end(key, 1.0), 4.0)
    assert (await store.begin(start("after"), 5.0)).service_s == 0.0
    assert (await store.counts()).active_calls == 1
    await asyncio.to_thread(check, store)


@pytest.mark.parametrize("how", ["deleted", "session"])
async def test_what_ends_while_another_gateway_has_joined_the_empty_table_ends_there_too(
    own_server: RedisServer, own_table: Table, how: str
) -> None:
    own_server.start()
    late, early = await own_table.open(), await own_table.open()
    own_server.stop()
    for store in (late, early):
        assert await store.open_session("s", 0.0)
    assert late.failure() is not None
    own_server.start()
    await returned(early, 1.0)
    await early.begin(start("a", session="s"), 2.0)
    await early.settle(end("a", 1.0), 3.0)
    await (late.close_session("s", 4.0) if how == "session" else late.end_program("p", 4.0))
    await returned(late, 5.0)
    assert await all_programs(early) == []


async def test_after_a_failover_the_new_master_is_joined(redis_program: str, tmp_path: Path) -> None:
    """Sentinel names the master; what its replica had received is still there."""
    with contextlib.ExitStack() as stack:

        def started(server: RedisServer) -> RedisServer:
            stack.callback(server.stop)
            server.start()
            return server

        for name in ("master", "replica", "sentinel"):
            (tmp_path / name).mkdir()
        master = started(RedisServer(redis_program, tmp_path / "master"))
        options = ("--replicaof", "127.0.0.1", str(master.port))
        started(RedisServer(redis_program, tmp_path / "replica", *options))
        sentinel = started(SentinelServer(redis_program, tmp_path / "sentinel", master.port))
        store = await Table("fallback", sentinel.url).open()
        assert store.failure() is None
        await store.begin(start("a"), 0.0)
        await store.settle(end("a", 2.0), 1.0)
        with Redis.from_url(master.url) as client:
            assert client.wait(1, int(1000 * PATIENCE_S)) == 1
        await until(lambda: knows_a_replica(sentinel.port))
        master.stop()
        await store.begin(start("alone"), 2.0)
        await store.settle(end("alone", 1.0), 3.0)
        await returned(store, 4.0)
        assert (await store.begin(start("b"), 5.0)).service_s == 2.0
        await store.close()


def knows_a_replica(sentinel_port: int) -> bool:
    with Redis(port=sentinel_port) as client:
        return bool(client.sentinel_slaves("table"))


async def test_a_gateway_that_starts_without_the_table_works_and_joins_later(
    own_server: RedisServer, own_table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs that the table is missing, once, and that it is back."""
    store = await own_table.open()
    assert "cannot be used" in str(store.failure())
    await store.begin(start("a"), 0.0)
    own_server.start()
    await returned(store, 1.0)
    await store.settle(end("a", 1.0), 2.0)
    await store.begin(start("b", "q"), 3.0)
    assert [view.program_id for view in await all_programs(store)] == ["q"]
    lost, back = [record.getMessage() for record in caplog.records]
    assert lost.startswith("the shared process table cannot be used")
    assert back == "the shared process table is back"


async def test_a_request_whose_numbers_break_a_script_does_not_degrade_the_gateway(shared: Table) -> None:
    store = await shared.open()
    await store.begin(start("a", interceptions=(("x", 1e308), ("y", 1e308))), 0.0)
    assert store.failure() is None
    await store.begin(start("b", "q"), 0.0)
    assert await (await shared.open()).program("q") is not None, "other programs reach the table"
    await store.settle(end("a", 1.0), 1.0)
    await store.settle(end("b", 2.0, program="q"), 1.0)
    assert store.failure() is None


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "settle", "settle", "cut", "mend", "reap"]),
        st.sampled_from([0, 1]),
        st.sampled_from(["p", "q"]),
    ),
    max_size=40,
)


@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moves=MOVES)
async def test_any_outages_leave_no_call_behind(shared: Table, pair: Pair, moves: list[Any]) -> None:
    """Each call that began in the shared table is charged there, and once."""
    await shared.renew()
    charged = {"p": 0.0, "q": 0.0}
    running: list[tuple[int, str, str]] = []

    async def settle(now: float) -> None:
        side, key, program = running.pop(0)
        store = stores[side]
        if store._homes[key] is store._shared:
            charged[program] += 1.0
        await store.settle(end(key, 1.0, program=program), now)

    async with pair() as (far, near, relay):
        stores = (far, near)
        for number, (move, side, program) in enumerate(moves):
            if move == "begin":
                await stores[side].begin(start(f"{number}", program), float(number))
                running.append((side, f"{number}", program))
            elif move == "settle" and running:
                await settle(float(number))
            elif move == "reap":
                await stores[side].reap(float(number))
            elif move in ("cut", "mend"):
                getattr(relay, move)()
        relay.mend()
        await returned(far, float(len(moves)))
        while running:
            await settle(float(len(moves)))
        assert (await near.counts()).active_calls == (await far.counts()).active_calls == 0
        assert {view.program_id: view.service_s for view in await all_programs(near)} == {
            program: service_s for program, service_s in charged.items() if service_s
        }
        assert (await far._memory.counts()).programs == 0
        await asyncio.to_thread(check, far)
