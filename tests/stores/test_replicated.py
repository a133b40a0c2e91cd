"""Gateways that lose the shared table, continue with their copies, and return."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.redis_server import RedisServer
from tests.stores.relay import Relay, relaying
from tests.stores.tables import IDLE_S, LEASE_S, SESSION_TTL_S, Table, all_programs, check, end, start
from tests.waiting import PATIENCE_S

from autellix_backend.core.errors import UnknownCallError
from autellix_backend.core.policies import make_policy
from autellix_backend.stores import backlog
from autellix_backend.stores.base import Counts, ProgramView
from autellix_backend.stores.redis import RedisStore

SHORT_S = 1.0


@pytest.fixture
def shared(redis_server: RedisServer) -> Table:
    """Return an empty table of stores with copies."""
    return Table("replicated", redis_server.url)


Pair = Callable[..., Any]


@pytest.fixture
def pair(shared: Table, redis_server: RedisServer) -> Pair:
    """Open two gateways; the first one's line can be cut."""

    @asynccontextmanager
    async def opened(policy: str = "plas", **options: Any) -> AsyncIterator[tuple[Any, Any, Relay]]:
        async with relaying(redis_server.port) as relay:
            far = await shared.open(policy, url=relay.url, **options)
            yield far, await shared.open(policy), relay
            await far.close()

    return opened


async def view_of(store: Any, program: str = "p") -> ProgramView:
    view: ProgramView | None = await store.program(program)
    assert view is not None
    return view


async def returned(store: Any, now: float) -> None:
    """Run rounds of the reaper until the store is back."""
    async with asyncio.timeout(PATIENCE_S):
        while store.failure() is not None:
            await store.reap(now)
        await store.reap(now)


@pytest.mark.parametrize(("policy", "expected"), [("plas", 15.0), ("atlas", 9.0)])
def test_charges_on_both_sides_of_a_partition_count_once(
    shared: Table, pair: Pair, policy: str, expected: float
) -> None:
    async def main() -> None:
        async with pair(policy) as (far, near, relay):
            for store, key in ((far, "a"), (near, "b")):
                await store.begin(start(key), 0.0)
                await store.settle(end(key, 1.0), 1.0)
            await far.begin(start("before"), 1.0)
            relay.cut()
            await far.begin(start("during"), 2.0)
            await far.settle(end("before", 3.0, inherited_service_s=2.0), 3.0)
            await far.settle(end("during", 4.0, inherited_service_s=5.0), 3.0)
            await near.begin(start("c"), 3.0)
            await near.settle(end("c", 6.0, inherited_service_s=2.0), 4.0)
            assert far.failure() is not None
            assert near.failure() is None
            relay.mend()
            await returned(far, 5.0)
            assert (await view_of(near)).service_s == (await view_of(far)).service_s == expected
            assert (await view_of(near)).finished_calls == 5
            assert (await far.begin(start("d"), 6.0)).service_s == expected
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_age_and_work_outlive_a_partition_and_a_gateway(shared: Table, pair: Pair) -> None:
    """Each gateway counts from the first arrival anywhere, and alone from what it knew before."""

    async def main() -> None:
        async with pair() as (far, near, relay):
            await near.begin(start("a"), 0.0)
            await near.settle(end("a", 1.0, prompt_tokens=10, cached_tokens=4, output_tokens=1), 1.0)
            known = await far.begin(start("b"), 5.0)
            assert (known.age_s, known.work) == (5.0, 38.0)
            relay.cut()
            await far.settle(end("b", 1.0, prompt_tokens=12, cached_tokens=10), 6.0)
            alone = await far.begin(start("c"), 7.0)
            assert (alone.age_s, alone.work) == (7.0, 40.0)
            relay.mend()
            await returned(far, 8.0)
            successor = await shared.open()
            after = await successor.begin(start("d"), 9.0)
            assert (after.age_s, after.work) == (9.0, 40.0)
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_call_waits_for_a_silent_table_once_and_not_for_long(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        fallbacks: list[None] = []
        async with pair(timeout_s=SHORT_S, on_fallback=lambda: fallbacks.append(None)) as (far, _, relay):
            relay.deafen()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(far.begin(start(f"{number}"), 0.0) for number in range(20)))
            assert "no answer" in str(far.failure())
            assert len(fallbacks) == 20
            begun = asyncio.get_running_loop().create_task(far.begin(start("later"), 1.0))
            # One turn of the loop: nothing is asked of the table.
            await asyncio.sleep(0)
            assert begun.done()

    shared.run(main())


@pytest.mark.parametrize("when", ["begin", "settle"])
def test_a_call_whose_answer_got_lost_counts_once(shared: Table, pair: Pair, when: str) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            await far.begin(start("first"), 0.0)
            # A script that the server does not know yet would need a second message.
            await far.begin(start("other", "other"), 0.0)
            await far.settle(end("other", 1.0, program="other", is_final=True), 0.0)
            if when == "begin":
                relay.lose_answers()
            await far.begin(start("a"), 0.0)
            relay.lose_answers()
            await far.settle(end("a", 3.0), 1.0)
            assert (await view_of(near)).service_s == (3.0 if when == "settle" else 0.0)
            relay.cut()
            relay.mend()
            await returned(far, 2.0)
            view = await view_of(near)
            assert (view.service_s, view.finished_calls, view.active_calls) == (3.0, 1, 1)
            with pytest.raises(UnknownCallError):
                await far.settle(end("a", 3.0), 3.0)
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_calls_counted_as_lost_run_again_when_their_gateway_returns(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            await far.begin(start("a"), 0.0)
            await far.begin(start("b"), 0.0)
            relay.cut()
            await near.reap(LEASE_S + 1)
            view = await view_of(near)
            assert [call.end.outcome for call in view.calls if call.end] == ["lost", "lost"]
            assert view.service_s == 0.0
            await far.settle(end("a", 5.0), LEASE_S + 2)
            relay.mend()
            await returned(far, LEASE_S + 3)
            assert (await view_of(near)).active_calls == 1
            await far.settle(end("b", 2.0), LEASE_S + 4)
            assert (await view_of(near)).service_s == 7.0
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_program_that_ended_meanwhile_stays_ended(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            for name in ("idle", "charged", "busy"):
                await far.begin(start(f"{name}-1", name), 0.0)
                await far.settle(end(f"{name}-1", 1.0, program=name), 1.0)
            await far.begin(start("busy-2", "busy"), 1.0)
            await far.begin(start("charged-2", "charged"), 1.0)
            left: list[str] = []
            far.subscribe(lambda ended: left.append(ended.program_id))
            relay.cut()
            await far.settle(end("charged-2", 1.0, program="charged"), 2.0)
            for name in ("idle", "charged", "busy"):
                assert await near.end_program(name, 3.0) is True
            await near.reap(LEASE_S + 1)
            relay.mend()
            await returned(far, LEASE_S + 2)
            assert [view.program_id for view in await all_programs(near)] == ["busy"]
            await far.settle(end("busy-2", 1.0, program="busy"), LEASE_S + 3)
            assert await near.counts() == Counts(programs=0, sessions=0, active_calls=0)
            assert sorted(left) == ["busy", "charged", "idle"]
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_an_end_on_both_sides_of_a_partition_is_published_once(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            ends: dict[str, list[str]] = {"far": [], "near": []}
            far.subscribe(lambda ended: ends["far"].append(ended.program_id))
            near.subscribe(lambda ended: ends["near"].append(ended.program_id))
            await far.begin(start("a", "known"), 0.0)
            await far.settle(end("a", 1.0, program="known"), 1.0)
            relay.cut()
            for store, key in ((far, "far"), (near, "near")):
                await store.begin(start(f"new-{key}", "new"), 2.0)
                await store.settle(end(f"new-{key}", 1.0, program="new", is_final=True), 3.0)
                assert await store.end_program("known", 3.0) is True
            relay.mend()
            await returned(far, 4.0)
            for store in (far, near):
                await store.reap(5.0)
            assert {side: sorted(names) for side, names in ends.items()} == {
                "far": ["known", "new"],
                "near": ["known", "new"],
            }

    shared.run(main())


@pytest.mark.parametrize("how", ["final", "deleted", "session"])
def test_an_end_whose_answer_got_lost_is_published_once(shared: Table, pair: Pair, how: str) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            ends: list[str] = []
            far.subscribe(lambda ended: ends.append(ended.program_id))
            await far.open_session("s", 0.0)
            await far.begin(start("a", session="s"), 0.0)
            await far.settle(end("a", 1.0), 1.0)
            await far.begin(start("b", session="s"), 2.0)
            if how != "final":
                await far.settle(end("b", 1.0), 3.0)
            relay.lose_answers()
            if how == "final":
                await far.settle(end("b", 1.0, is_final=True), 3.0)
            elif how == "deleted":
                assert await far.end_program("p", 3.0) is True
            else:
                assert await far.close_session("s", 3.0) is True
            relay.cut()
            relay.mend()
            await returned(far, 4.0)
            assert ends == ["p"]
            assert (await near.counts()).programs == 0

    shared.run(main())


@pytest.mark.parametrize("how", ["silent", "idle"])
def test_a_reaped_end_whose_answer_got_lost_is_published_once(shared: Table, pair: Pair, how: str) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            ends: dict[str, list[str]] = {"far": [], "near": []}
            far.subscribe(lambda ended: ends["far"].append(ended.program_id))
            near.subscribe(lambda ended: ends["near"].append(ended.program_id))
            session = "s" if how == "silent" else None
            if session is not None:
                await far.open_session(session, 0.0)
            await far.begin(start("a", session=session), 0.0)
            await far.settle(end("a", 1.0), 1.0)
            # A script that the server does not know yet would need a second message.
            await far.reap(2.0)
            now = 3.0 + {"silent": SESSION_TTL_S, "idle": IDLE_S}[how]
            relay.lose_answers()
            await far.reap(now)
            assert far.failure() is not None
            relay.cut()
            relay.mend()
            await returned(far, now)
            await returned(near, now)
            for store in (far, near):
                await store.reap(now + IDLE_S)
            assert ends == {"far": ["p"], "near": ["p"]}
            assert (await near.counts()).programs == (await far.counts()).programs == 0

    shared.run(main())


@pytest.mark.parametrize("how", ["deleted", "final", "session", "silent", "idle"])
def test_every_kind_of_end_is_published_at_every_gateway(shared: Table, how: str) -> None:
    async def main() -> None:
        one, other = await shared.open(), await shared.open()
        ends: dict[str, list[str]] = {"one": [], "other": []}
        one.subscribe(lambda ended: ends["one"].append(ended.program_id))
        other.subscribe(lambda ended: ends["other"].append(ended.program_id))
        await one.open_session("s", 0.0)
        await one.begin(start("a", session="s"), 0.0)
        await one.settle(end("a", 1.0, is_final=how == "final"), 1.0)
        if how == "deleted":
            await other.end_program("p", 2.0)
        elif how == "session":
            await other.close_session("s", 2.0)
        elif how == "idle":
            await one.heartbeat("s", IDLE_S)
        now = {"silent": SESSION_TTL_S, "idle": IDLE_S + 1.0}.get(how, 2.0)
        # The last round is for a gateway whose lease the first one ended.
        for store in (other, one, other, one):
            await store.reap(now)
        assert ends == {"one": ["p"], "other": ["p"]}

    shared.run(main())


def test_ends_and_starts_during_a_partition_are_published_afterwards(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            await far.open_session("gone", 0.0)
            await far.begin(start("a", "kept", "gone"), 0.0)
            await far.settle(end("a", 1.0, program="kept"), 1.0)
            await near.begin(start("b", "ended"), 1.0)
            await near.settle(end("b", 1.0, program="ended"), 1.0)
            relay.cut()
            assert await far.open_session("new", 2.0) is True
            assert await far.heartbeat("new", 3.0) is True
            await far.begin(start("c", "fresh", "new", name="chat"), 3.0)
            await far.begin(start("d", "ended"), 3.0)
            await far.settle(end("d", 1.0, program="ended", is_final=True), 4.0)
            assert await far.close_session("gone", 4.0) is True
            relay.mend()
            await returned(far, 5.0)
            assert [view.program_id for view in await all_programs(near)] == ["fresh"]
            assert (await view_of(near, "fresh")).name == "chat"
            assert await near.heartbeat("gone", 6.0) is False
            assert await near.heartbeat("new", 6.0) is True
            assert await near.close_session("new", 7.0) is True
            await far.settle(end("c", 1.0, program="fresh"), 8.0)
            assert await near.program("fresh") is None
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_program_known_to_a_partitioned_gateway_alone_ends_on_the_other_side(
    shared: Table, pair: Pair
) -> None:
    """Both sides first saw it during the partition, and one learned of its end."""

    async def main() -> None:
        async with pair() as (far, near, relay):
            relay.cut()
            for name in ("deleted", "final", "running", "kept"):
                for store, key in ((far, "far"), (near, "near")):
                    await store.begin(start(f"{name}-{key}", name, "s"), 0.0)
                    is_final = (name, key) == ("final", "near")
                    if (name, key) != ("running", "far"):
                        await store.settle(end(f"{name}-{key}", 1.0, program=name, is_final=is_final), 1.0)
            assert await near.end_program("deleted", 2.0) is True
            assert await near.end_program("running", 2.0) is True
            relay.mend()
            await returned(far, 3.0)
            assert {view.program_id for view in await all_programs(near)} == {"running", "kept"}
            await far.settle(end("running-far", 1.0, program="running"), 4.0)
            assert [view.program_id for view in await all_programs(far)] == ["kept"]
            assert (await view_of(near, "kept")).service_s == 2.0
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_program_ends_with_the_final_call_of_a_partitioned_gateway(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            await far.begin(start("a"), 0.0)
            relay.cut()
            assert await near.end_program("p", 1.0) is True
            await far.settle(end("a", 1.0), 2.0)
            assert (await near.counts()).programs == 1
            relay.mend()
            await returned(far, 3.0)
            assert await near.counts() == Counts(programs=0, sessions=0, active_calls=0)
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_program_that_ends_while_its_gateway_reconnects_has_ended(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            relay.cut()
            await far.open_session("s", 0.0)
            for store, key in ((far, "far"), (near, "near")):
                await store.begin(start(key), 0.0)
            await near.settle(end("near", 1.0), 1.0)
            relay.mend()
            returning = asyncio.create_task(far.reap(1.0))
            while far._backlog.beats:  # noqa: ASYNC110 - their messages are on the way
                await asyncio.sleep(0)
            await far.settle(end("far", 1.0, is_final=True), 1.0)
            await returning
            await returned(far, 2.0)
            assert (await near.counts()).programs == 0
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_session_that_ends_during_a_partition_ends_its_new_programs(shared: Table, pair: Pair) -> None:
    async def main() -> None:
        async with pair() as (far, near, relay):
            relay.cut()
            await far.open_session("s", 0.0)
            for name in ("idle", "busy"):
                await far.begin(start(f"{name}-1", name, "s"), 0.0)
                await far.settle(end(f"{name}-1", 1.0, program=name), 1.0)
            await far.begin(start("busy-2", "busy", "s"), 1.0)
            await near.begin(start("idle-2", "idle"), 1.0)
            await near.settle(end("idle-2", 1.0, program="idle"), 1.0)
            assert await far.close_session("s", 2.0) is True
            relay.mend()
            await returned(far, 3.0)
            assert [view.program_id for view in await all_programs(near)] == ["busy"]
            await far.settle(end("busy-2", 1.0, program="busy"), 4.0)
            assert await near.counts() == Counts(programs=0, sessions=0, active_calls=0)
            await asyncio.to_thread(check, far)

    shared.run(main())


@pytest.fixture
def own_server(redis_program: str, tmp_path: Path) -> Iterator[RedisServer]:
    """Yield a server that a test may kill."""
    server = RedisServer(redis_program, tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(("policy", "expected"), [("plas", 19.0), ("atlas", 13.0)])
def test_an_emptied_table_is_restored(own_server: RedisServer, policy: str, expected: float) -> None:
    async def main() -> None:
        one, other = await table.open(policy), await table.open(policy)
        await one.open_session("s", 0.0)
        await one.begin(start("a", session="s"), 0.0)
        await one.settle(end("a", 2.0), 1.0)
        await other.begin(start("b"), 1.0)
        await other.settle(end("b", 4.0, inherited_service_s=2.0), 2.0)
        await one.begin(start("c"), 2.0)
        await one.begin(start("quiet", "quiet"), 2.0)
        await one.settle(end("quiet", 1.0, program="quiet"), 2.0)
        own_server.stop()
        await one.settle(end("c", 6.0, inherited_service_s=6.0), 3.0)
        await other.begin(start("d"), 3.0)
        await other.settle(end("d", 7.0, inherited_service_s=6.0), 4.0)
        own_server.start()
        await returned(other, 5.0)
        await returned(one, 5.0)
        for store in (one, other):
            view = await view_of(store)
            assert (view.service_s, view.finished_calls) == (expected, 4)
            assert (await view_of(store, "quiet")).service_s == 1.0
        assert (await view_of(one)).session_ids == ("s",)
        assert await other.heartbeat("s", 6.0) is True
        check(one)

    table = Table("replicated", own_server.url)
    table.run(main())


def test_what_an_emptied_table_missed_is_sent_some_at_a_time(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, a busy gateway would have no answer in time, and stay without the table."""
    monkeypatch.setattr(backlog, "MAX_UPLOADS", 4)
    in_flight: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counted(name: str) -> None:
        operation = getattr(RedisStore, name)

        async def run(*arguments: Any) -> Any:
            in_flight[name] += 1
            most[name] = max(most[name], in_flight[name])
            try:
                return await operation(*arguments)
            finally:
                in_flight[name] -= 1

        monkeypatch.setattr(RedisStore, name, run)

    async def main() -> None:
        store = await table.open()
        for number in range(20):
            await store.begin(start("k", f"p{number}"), 0.0)
            await store.settle(end("k", 1.0, program=f"p{number}"), 0.0)
            await store.end_program(f"p{number}", 0.0)
        for number in range(20):
            await store.open_session(f"s{number}", 0.0)
        own_server.stop()
        assert await store.heartbeat("s0", 1.0) is True
        counted("merge_session")
        counted("end_program")
        own_server.start()
        await returned(store, 2.0)
        assert await store.counts() == Counts(programs=0, sessions=20, active_calls=0)
        assert most == {"merge_session": 4, "end_program": 4}

    table = Table("replicated", own_server.url)
    table.run(main())


@pytest.mark.parametrize("is_known", [True, False])
def test_programs_that_ended_while_the_table_was_lost_are_not_restored(
    own_server: RedisServer, is_known: bool
) -> None:
    """Whichever gateway returns first: the one that learned of the end, or the one that did not."""

    async def main() -> None:
        one, other = await table.open(), await table.open()

        async def call(number: int) -> None:
            for store, name in itertools.product((one, other), ("p", "q")):
                key = f"{name}-{number}-{store is one}"
                await store.begin(start(key, name), 0.0)
                await store.settle(end(key, 1.0, program=name), 1.0)

        if is_known:
            await call(0)
        own_server.stop()
        await call(1)
        await one.end_program("p", 2.0)
        await other.end_program("q", 2.0)
        own_server.start()
        await returned(one, 3.0)
        await returned(other, 3.0)
        assert await one.counts() == Counts(programs=0, sessions=0, active_calls=0)
        check(one)

    table = Table("replicated", own_server.url)
    table.run(main())


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_program_whose_session_another_gateway_closed_is_not_restored(
    own_server: RedisServer, is_told_first: bool
) -> None:
    """The one that learned of the session's end never had the program."""

    async def main() -> None:
        told, other = await table.open(), await table.open()
        await told.open_session("s", 0.0)
        await other.begin(start("a", session="s"), 0.0)
        await other.settle(end("a", 1.0), 1.0)
        own_server.stop()
        assert await told.close_session("s", 2.0) is True
        await other.heartbeat("nobody", 2.0)
        own_server.start()
        for store in (told, other) if is_told_first else (other, told):
            await returned(store, 3.0)
        assert await told.counts() == Counts(programs=0, sessions=0, active_calls=0)
        check(told)

    table = Table("replicated", own_server.url)
    table.run(main())


@pytest.mark.parametrize("is_heard_first", [True, False])
def test_programs_that_ended_just_before_the_table_was_lost_are_not_restored(
    own_server: RedisServer, is_heard_first: bool
) -> None:
    """One gateway does not know of the end that another one brought about."""

    async def main() -> None:
        one, other = await table.open(), await table.open()
        for store, key in ((one, "a"), (other, "b")):
            await store.begin(start(key), 0.0)
            await store.settle(end(key, 1.0), 1.0)
        assert await one.end_program("p", 2.0) is True
        own_server.stop()
        for store in (one, other):
            await store.heartbeat("nobody", 3.0)
        own_server.start()
        for store in (one, other) if is_heard_first else (other, one):
            await returned(store, 4.0)
        assert await other.counts() == Counts(programs=0, sessions=0, active_calls=0)
        check(one)

    table = Table("replicated", own_server.url)
    table.run(main())


def test_a_gateway_that_starts_without_the_table_works_and_joins_later(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that the table is missing, once, and that it is back."""

    async def main() -> None:
        own_server.stop()
        store = await table.open()
        await store.begin(start("a"), 0.0)
        await store.settle(end("a", 2.0), 1.0)
        assert store.failure() is not None
        own_server.start()
        await returned(store, 2.0)
        assert (await view_of(store)).service_s == 2.0
        check(store)
        lost, back = [record.getMessage() for record in caplog.records]
        assert lost.startswith("the shared process table cannot be used")
        assert back == "the shared process table is back; programs to merge: 1"

    table = Table("replicated", own_server.url)
    table.run(main())


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "settle", "settle", "cut", "mend", "reap"]),
        st.sampled_from([0, 1]),
        st.sampled_from(["p", "q"]),
        st.floats(min_value=0.0, max_value=9.0),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", ["plas", "atlas"])
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moves=MOVES)
def test_any_partitions_leave_the_service_exact(
    shared: Table, pair: Pair, policy: str, moves: list[Any]
) -> None:
    """The sum, or the longest path, over all calls whatever gateway settled them, and in whatever state."""

    async def main() -> None:
        shared.renew()
        rule = make_policy(policy)
        expected = {"p": 0.0, "q": 0.0}
        running: list[tuple[int, str, str, float]] = []
        async with pair(policy) as (far, near, relay):
            stores = (far, near)
            for number, (move, side, program, seconds) in enumerate(moves):
                now = float(number)
                if move == "begin":
                    inherited = await stores[side].begin(start(f"{number}", program), now)
                    running.append((side, f"{number}", program, inherited.service_s))
                elif move == "settle" and running:
                    side, key, program, inherited_s = running.pop(0)
                    done = end(key, seconds, program=program, inherited_service_s=inherited_s)
                    await stores[side].settle(done, now)
                    expected[program] = rule.complete(expected[program], inherited_s, seconds)
                elif move == "cut":
                    relay.cut()
                elif move == "mend":
                    relay.mend()
                elif move == "reap":
                    await stores[side].reap(now)
            relay.mend()
            await returned(far, float(len(moves)))
            for view in await all_programs(near):
                assert view.service_s == pytest.approx(expected[view.program_id])
            assert (await near.counts()).active_calls == len(running)
            await asyncio.to_thread(check, far)

    shared.run(main())


def test_a_request_whose_numbers_break_a_script_does_not_degrade_the_gateway(shared: Table) -> None:
    async def main() -> None:
        store = await shared.open()
        broken = replace(start("a"), interceptions=(("x", 1e308), ("y", 1e308)))
        await store.begin(broken, 0.0)
        assert store.failure() is None
        await store.begin(start("b", "q"), 0.0)
        assert await (await shared.open()).program("q") is not None, "other programs reach the table"
        await store.settle(end("a", 1.0), 1.0)
        await store.settle(replace(end("b", 2.0), program_id="q"), 1.0)
        assert store.failure() is None

    shared.run(main())
