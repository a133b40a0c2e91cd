"""What every store does with programs, calls and sessions, under a clock that the tests hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.stores.tables import IDLE_S, MAX_ANSWER_IDS, Table, all_programs, check, end, start

from autellix_backend import pauses
from autellix_backend.core.errors import DuplicateCallError, UnknownCallError
from autellix_backend.stores.base import (
    Adoption,
    AnswerSource,
    CallStart,
    Counts,
    ImplicitCall,
    Inherited,
    NotOwnerError,
    ProgramEnd,
    ProgramStore,
    call_key,
)
from autellix_backend.stores.memory import HISTORY_CALLS


@pytest.mark.parametrize(("policy", "expected"), [("plas", 5.0), ("atlas", 3.0)])
async def test_the_policy_decides_what_parallel_calls_add_up_to(
    table: Table, policy: str, expected: float
) -> None:
    store = await table.open(policy)
    await store.begin(start("a"), 0.0)
    await store.begin(start("b"), 0.0)
    await store.settle(end("a", 1.0, 1.0), 1.0)
    await store.settle(end("b", 3.0), 2.0)
    inherited = await store.begin(start("c"), 3.0)
    assert inherited == Inherited(
        service_s=expected, program_service_s=expected, wait_s=2.0, finished_calls=2, age_s=3.0
    )
    check(store)


async def test_a_call_is_settled_exactly_once(table: Table) -> None:
    store = await table.open()
    await store.begin(start("a"), 0.0)
    with pytest.raises(DuplicateCallError):
        await store.begin(start("a"), 0.0)
    await store.settle(end("a", 1.0), 1.0)
    with pytest.raises(UnknownCallError):
        await store.settle(end("a", 1.0), 1.0)
    view = await store.program("p")
    assert view is not None
    assert (view.service_s, view.finished_calls) == (1.0, 1)
    check(store)


async def test_a_program_ends_with_its_final_call_but_not_before_the_others(table: Table) -> None:
    store = await table.open()
    await store.begin(start("a"), 0.0)
    await store.begin(start("b"), 0.0)
    await store.settle(end("a", 1.0, is_final=True), 1.0)
    check(store)
    assert await store.program("p") is not None
    await store.settle(end("b", 1.0), 2.0)
    assert await store.program("p") is None
    check(store)


async def test_closing_a_session_ends_the_programs_that_it_alone_keeps(table: Table) -> None:
    store = await table.open()
    assert await store.open_session("s", 0.0) is True
    assert await store.open_session("s", 0.0) is False
    for key, program, session in (("a", "p", "s"), ("b", "q", "s"), ("c", "q", "t")):
        await store.begin(start(key, program, session), 0.0)
        await store.settle(end(key, 1.0, program=program), 1.0)
    check(store)
    assert await store.close_session("s", 2.0) is True
    assert [view.program_id for view in await all_programs(store)] == ["q"]
    assert await store.close_session("s", 2.0) is False
    assert await store.close_session("t", 2.0) is True
    assert await store.counts() == Counts(programs=0, sessions=0, active_calls=0)
    check(store)


async def test_a_lost_heartbeat_ends_the_session_and_a_running_call_may_end_after_it(table: Table) -> None:
    store = await table.open()
    await store.open_session("s", 0.0)
    await store.begin(start("a", session="s"), 0.0)
    assert await store.heartbeat("s", 20.0) is True
    assert (await store.reap(49.0)).sessions == ()
    assert (await store.reap(50.0)).sessions == ("s",)
    assert await store.heartbeat("s", 51.0) is False
    check(store)
    await store.settle(end("a", 1.0), 60.0)
    assert await store.counts() == Counts(programs=0, sessions=0, active_calls=0)
    check(store)


async def test_idle_programs_leave_and_busy_ones_stay(table: Table) -> None:
    store = await table.open()
    await store.begin(start("a", "idle", "s"), 0.0)
    await store.settle(end("a", 1.0, program="idle"), 1.0)
    await store.begin(start("b", "busy"), 0.0)
    assert (await store.reap(101.0)).programs == ("idle",)
    assert (await store.reap(10_000.0)).programs == ()
    check(store)


@pytest.mark.parametrize(
    "end_all",
    [
        lambda store: store.close_session("s", 2.0),
        # The session's heartbeat is overdue, but no program has been idle for long enough.
        lambda store: store.reap(51.0),
        lambda store: store.reap(10_000.0),
    ],
    ids=["close", "silent", "idle"],
)
async def test_others_advance_while_many_programs_end(
    table: Table, end_all: Callable[[ProgramStore], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end costs its subscribers about 0.1 ms, and a session may have thousands of programs."""
    monkeypatch.setattr(pauses, "STEP_S", 0.0)
    names = [f"p{number}" for number in range(50)]
    store = await table.open()
    await store.open_session("s", 0.0)
    for name in names:
        await store.begin(start(name, name, "s"), 0.0)
        await store.settle(end(name, 1.0, program=name), 1.0)
    ended: dict[str, int] = {}
    rounds = 0

    async def advance() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    store.subscribe(lambda each: ended.setdefault(each.program_id, rounds))
    other = asyncio.create_task(advance())
    await end_all(store)
    other.cancel()
    assert sorted(ended) == sorted(names)
    assert len(set(ended.values())) == len(names)
    assert await store.counts() == Counts(programs=0, sessions=0, active_calls=0)
    check(store)


async def test_a_call_while_its_session_is_closed_keeps_the_tables_whole(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "STEP_S", 0.0)
    store = await table.open()
    await store.open_session("s", 0.0)
    for name in ("p", "q", "r"):
        await store.begin(start(name, name, "s"), 0.0)
        await store.settle(end(name, 1.0, program=name), 1.0)
    begun: list[asyncio.Task[Inherited]] = []

    def begin_again(ended: ProgramEnd) -> None:
        name = ended.program_id
        begun.append(asyncio.create_task(store.begin(start(name + "2", name, "s"), 2.0)))

    store.subscribe(begin_again)
    await store.close_session("s", 2.0)
    await asyncio.gather(*begun)
    assert len(begun) == 3
    check(store)
    assert (await store.counts()).active_calls == 3


async def test_ending_a_program_twice_is_reported(table: Table) -> None:
    store = await table.open()
    await store.begin(start("a"), 0.0)
    await store.settle(end("a", 1.0), 1.0)
    assert await store.end_program("p", 2.0) is True
    assert await store.end_program("p", 2.0) is False
    check(store)


async def test_the_history_is_bounded_and_shows_running_calls_last(table: Table) -> None:
    store = await table.open()
    for number in range(HISTORY_CALLS + 5):
        await store.begin(start(str(number)), 0.0)
        await store.settle(end(str(number), 0.0), 1.0)
    await store.begin(start("last"), 2.0)
    view = await store.program("p")
    assert view is not None
    assert len(view.calls) == HISTORY_CALLS + 1
    assert (view.calls[0].start.call_id, view.calls[-1].start.call_id) == ("5", "last")
    assert view.calls[-1].end is None
    check(store)


async def test_an_end_carries_the_first_calls_class_and_the_work(table: Table) -> None:
    store = await table.open()
    ends: list[ProgramEnd] = []
    store.subscribe(ends.append)
    await store.begin(start("a", class_id="/chat"), 0.0)
    await store.settle(end("a", 1.0, prompt_tokens=10, cached_tokens=4, output_tokens=3), 1.0)
    inherited = await store.begin(start("b", class_id="/tree"), 2.0)
    assert (inherited.finished_calls, inherited.work) == (1, 102.0)
    await store.settle(end("b", 1.0, prompt_tokens=20, output_tokens=1, is_final=True), 3.0)
    assert ends == [ProgramEnd(program_id="p", class_id="/chat", work=154.0)]


async def test_what_nothing_identified_ends_without_work(table: Table) -> None:
    """The latest call decides: a single one is identified once another one continues its answer."""
    store = await table.open()
    ends: list[ProgramEnd] = []
    store.subscribe(ends.append)
    for name, calls in (("single", (False,)), ("agent", (False, True)), ("loose", (True, False))):
        for number, is_identified in enumerate(calls):
            key = f"{name}-{number}"
            await store.begin(start(key, name, class_id="/chat", is_identified=is_identified), 0.0)
            await store.settle(end(key, 1.0, program=name, output_tokens=1), 1.0)
        await store.end_program(name, 2.0)
    assert ends == [
        ProgramEnd(program_id="single", class_id="/chat"),
        ProgramEnd(program_id="agent", class_id="/chat", work=64.0),
        ProgramEnd(program_id="loose", class_id="/chat"),
    ]
    check(store)


async def test_known_parents_decide_where_a_call_starts(table: Table) -> None:
    store = await table.open("atlas_dag")
    await store.begin(start("long"), 0.0)
    await store.begin(start("short"), 0.0)
    await store.settle(end("long", 5.0), 5.0)
    await store.settle(end("short", 1.0), 5.0)
    child = CallStart(key="k", call_id="k", program_id="p", parents=("short",))
    stranger = CallStart(key="l", call_id="l", program_id="p", parents=("elsewhere",))
    expected = Inherited(service_s=1.0, program_service_s=5.0, wait_s=2.0, finished_calls=2, age_s=6.0)
    assert await store.begin(child, 6.0) == expected
    assert (await store.begin(stranger, 6.0)).service_s == 5.0


async def test_a_session_and_its_programs_have_one_owner(table: Table) -> None:
    store = await table.open()
    assert await store.session_owner("s") is None
    assert await store.open_session("s", 0.0, "me") is True
    assert await store.open_session("s", 1.0, "me") is False
    with pytest.raises(NotOwnerError):
        await store.open_session("s", 1.0, "thief")
    assert await store.session_owner("s") == "me"
    await store.begin(start("a", owner="me"), 0.0)
    with pytest.raises(NotOwnerError):
        await store.begin(start("b", owner="thief"), 0.0)
    await store.begin(start("c", owner="me"), 0.0)
    view = await store.program("p")
    assert view is not None
    assert (view.owner, view.active_calls) == ("me", 2)
    await store.close_session("s", 1.0)
    assert await store.session_owner("s") is None
    assert await store.open_session("s", 2.0, "thief") is True
    await store.open_session("open to all", 2.0)
    assert await store.session_owner("open to all") == ""
    check(store)


async def test_programs_are_listed_in_pages(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autellix_backend.stores.redis.MAX_NAMES", 3)
    monkeypatch.setattr("autellix_backend.stores.redis.MAX_PASSES", 2)
    store = await table.open()
    names = [f"{tenant}/{number}" for number in range(20) for tenant in "xy"]
    for name in names:
        await store.begin(start(name, name), 0.0)
    for name in names[::3]:
        await store.settle(end(name, 1.0, program=name), 1.0)
    idle = set(names[::3])
    expected = [name for name in names if name not in idle] + [name for name in names if name in idle]
    for prefix in ("", "x/", "nobody"):
        found: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            page = await store.page(prefix=prefix, after=cursor, limit=4)
            assert len(page.programs) <= 4
            found += [view.program_id for view in page.programs]
            cursor, pages = page.cursor, pages + 1
            assert pages < 50
        assert found == [name for name in expected if name.startswith(prefix)]
    for is_active in (True, False):
        rows = await all_programs(store, is_active=is_active)
        assert [view.program_id for view in rows] == [
            name for name in names if (name in idle) is not is_active
        ]
    with pytest.raises(ValueError, match="cursor of an earlier page"):
        await store.page(after="nonsense", limit=1)


async def test_a_listing_goes_on_behind_programs_that_have_ended(table: Table) -> None:
    store = await table.open()
    for number in range(200):
        await store.begin(start(f"k{number}", f"p{number}"), 0.0)
    page = await store.page(limit=100)
    for number in range(150):
        await store.settle(end(f"k{number}", 1.0, program=f"p{number}", is_final=True), 1.0)
    rest = await store.page(after=page.cursor, limit=100)
    assert [view.program_id for view in rest.programs] == [f"p{number}" for number in range(150, 200)]
    assert rest.cursor is None
    check(store)


async def test_an_answer_is_found_by_the_first_id_that_is_known(table: Table) -> None:
    store = await table.open()
    one, other = AnswerSource("p", "engine-0"), AnswerSource("q", "engine-1")
    await store.keep_answer("lab", ["a", "b"], one, 0.0)
    await store.keep_answer("lab", ["c"], other, 0.0)
    assert await store.find_answer("lab", ["unknown", "b", "c"], 1.0) == one
    assert await store.find_answer("lab", ["c", "a"], 1.0) == other
    assert await store.find_answer("lab", ["unknown"], 1.0) is None
    assert await store.find_answer("lab", [], 1.0) is None
    assert await store.find_answer("", ["a"], 1.0) is None
    check(store)


async def test_an_id_in_the_answers_of_two_programs_is_of_neither(table: Table) -> None:
    store = await table.open()
    await store.keep_answer("", ["a"], AnswerSource("p", "engine-0"), 0.0)
    await store.keep_answer("", ["a"], AnswerSource("p", "engine-1"), 1.0)
    assert await store.find_answer("", ["a"], 1.0) == AnswerSource("p", "engine-1")
    await store.keep_answer("", ["a"], AnswerSource("q", "engine-1"), 2.0)
    assert await store.find_answer("", ["a"], 2.0) is None
    await store.keep_answer("", ["a"], AnswerSource("p", "engine-1"), 3.0)
    assert await store.find_answer("", ["a"], 3.0) is None


async def test_implicit_calls_are_found_by_their_ids(table: Table) -> None:
    """Each tenant's own; an id of two programs is of neither, and answers have other names."""
    store = await table.open()
    call = ImplicitCall("c", "0", conversation="s", is_nested=True, transcript="00ff", owner="me")
    source = AnswerSource("lab/p", "engine-0", call)
    await store.keep_answer("lab", ["a", call_key("c")], source, 0.0)
    assert await store.find_calls("lab", ["unknown", "c", "a"], 1.0) == {"c": source}
    assert await store.find_calls("lab", [], 1.0) == {}
    assert await store.find_calls("other", ["c"], 1.0) == {}
    assert await store.find_answer("lab", ["c", "a"], 1.0) == source
    await store.keep_answer("lab", [call_key("c")], AnswerSource("lab/q", "engine-0", call), 2.0)
    assert await store.find_calls("lab", ["c"], 3.0) == {}
    assert await store.find_calls("lab", ["c"], 3.0 + 2 * IDLE_S) == {}
    check(store)


@pytest.mark.parametrize("policy", ["plas", "atlas_dag"])
async def test_a_program_adopts_a_finished_call_with_its_charges(table: Table, policy: str) -> None:
    """Each attempt of it; what it leaves keeps the rest, and is told apart once it has nothing left."""
    store = await table.open(policy)
    tokens = {"prompt_tokens": 7, "cached_tokens": 5, "output_tokens": 3}
    for key, call_id, service_s in (("a", "plan", 2.0), ("b", "first", 0.0), ("c", "first", 4.0)):
        flags = ("implicit", "truncated")
        await store.begin(start(key, "process", "s", call_id=call_id, parents=("x",), flags=flags), 1.0)
        await store.settle(end(key, service_s, program="process", **tokens), 2.0)
    adopting = start("d", "first", "s", parents=("first",), adopts=Adoption("process", "first"))
    inherited = await store.begin(adopting, 5.0)
    assert (inherited.service_s, inherited.finished_calls, inherited.has_emptied) == (4.0, 2, False)
    assert (inherited.wait_s, inherited.age_s) == (2.0, 4.0)
    left, found = await store.program("process"), await store.program("first")
    assert (left.service_s, left.total_service_s, left.finished_calls, left.output_tokens) == (2.0, 2.0, 1, 3)
    assert [call.start.call_id for call in left.calls] == ["plan"]
    first, retry, _ = found.calls
    for call in (first, retry):
        assert (call.start.program_id, call.start.parents, call.start.flags) == ("first", (), ("truncated",))
        assert call.end.program_id == "first"
    assert (found.total_service_s, found.prompt_tokens, found.session_ids) == (4.0, 14, ("s",))
    # Nothing is left of it there, and of what never was.
    again = await store.begin(start("e", "first", adopts=Adoption("process", "first")), 6.0)
    assert again.finished_calls == 2
    gone = await store.begin(start("f", "plan", adopts=Adoption("process", "plan")), 7.0)
    assert gone.has_emptied is True
    assert (await store.begin(start("g", "q", adopts=Adoption("nowhere", "x")), 8.0)).finished_calls == 0
    check(store)


async def test_an_answer_that_nobody_continues_is_forgotten(table: Table) -> None:
    store = await table.open()
    source = AnswerSource("p", "engine-0")
    await store.keep_answer("", ["a", "b"], source, 0.0)
    assert await store.find_answer("", ["a"], IDLE_S - 1) == source
    assert await store.find_answer("", ["b"], IDLE_S + 1) is None
    assert await store.find_answer("", ["a"], IDLE_S + 1) == source
    await store.keep_answer("", ["b"], AnswerSource("q", "engine-0"), IDLE_S + 2)
    assert await store.find_answer("", ["b"], IDLE_S + 2) == AnswerSource("q", "engine-0")


async def test_a_full_store_drops_the_oldest_answers_of_the_tenant_that_fills_it(table: Table) -> None:
    store = await table.open()
    source = AnswerSource("p", "engine-0")
    await store.keep_answer("quiet", ["mine"], source, 0.0)
    for number in range(3 * MAX_ANSWER_IDS):
        await store.keep_answer("loud", [f"id-{number}"], source, float(number))
    kept = [
        number
        for number in range(3 * MAX_ANSWER_IDS)
        if await store.find_answer("loud", [f"id-{number}"], 30.0) is not None
    ]
    assert MAX_ANSWER_IDS - 1 <= len(kept) <= MAX_ANSWER_IDS
    assert kept[-1] == 3 * MAX_ANSWER_IDS - 1
    assert await store.find_answer("quiet", ["mine"], 30.0) == source
