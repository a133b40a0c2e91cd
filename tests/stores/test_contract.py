"""What every store does with programs, calls and sessions, under a clock that the tests hold."""

from __future__ import annotations

import pytest
from tests.stores.tables import Table, check, end, start

from autellix_backend.core.errors import DuplicateCallError, UnknownCallError
from autellix_backend.core.estimate import LEAST_PROGRAMS, Hint
from autellix_backend.stores.base import (
    CallStart,
    Counts,
    Inherited,
    ProgramEnd,
)
from autellix_backend.stores.memory import HISTORY_CALLS


@pytest.mark.parametrize(("policy", "expected"), [("plas", 5.0), ("atlas", 3.0)])
def test_the_policy_decides_what_parallel_calls_add_up_to(table: Table, policy: str, expected: float) -> None:
    async def main() -> None:
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

    table.run(main())


def test_a_call_is_settled_exactly_once(table: Table) -> None:
    async def main() -> None:
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

    table.run(main())


def test_a_program_ends_with_its_final_call_but_not_before_the_others(table: Table) -> None:
    async def main() -> None:
        store = await table.open()
        await store.begin(start("a"), 0.0)
        await store.begin(start("b"), 0.0)
        await store.settle(end("a", 1.0, is_final=True), 1.0)
        check(store)
        assert await store.program("p") is not None
        await store.settle(end("b", 1.0), 2.0)
        assert await store.program("p") is None
        check(store)

    table.run(main())


def test_closing_a_session_ends_the_programs_that_it_alone_keeps(table: Table) -> None:
    async def main() -> None:
        store = await table.open()
        assert await store.open_session("s", 0.0) is True
        assert await store.open_session("s", 0.0) is False
        for key, program, session in (("a", "p", "s"), ("b", "q", "s"), ("c", "q", "t")):
            await store.begin(start(key, program, session), 0.0)
            await store.settle(end(key, 1.0, program=program), 1.0)
        check(store)
        assert await store.close_session("s", 2.0) is True
        assert [view.program_id for view in await store.programs()] == ["q"]
        assert await store.close_session("s", 2.0) is False
        assert await store.close_session("t", 2.0) is True
        assert await store.counts() == Counts(programs=0, sessions=0, active_calls=0)
        check(store)

    table.run(main())


def test_a_lost_heartbeat_ends_the_session_and_a_running_call_may_end_after_it(table: Table) -> None:
    async def main() -> None:
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

    table.run(main())


def test_idle_programs_leave_and_busy_ones_stay(table: Table) -> None:
    async def main() -> None:
        store = await table.open()
        await store.begin(start("a", "idle", "s"), 0.0)
        await store.settle(end("a", 1.0, program="idle"), 1.0)
        await store.begin(start("b", "busy"), 0.0)
        assert (await store.reap(101.0)).programs == ("idle",)
        assert (await store.reap(10_000.0)).programs == ()
        check(store)

    table.run(main())


def test_ending_a_program_twice_is_reported(table: Table) -> None:
    async def main() -> None:
        store = await table.open()
        await store.begin(start("a"), 0.0)
        await store.settle(end("a", 1.0), 1.0)
        assert await store.end_program("p", 2.0) is True
        assert await store.end_program("p", 2.0) is False
        check(store)

    table.run(main())


def test_the_history_is_bounded_and_shows_running_calls_last(table: Table) -> None:
    async def main() -> None:
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

    table.run(main())


def test_an_end_carries_the_first_calls_class_and_the_work(table: Table) -> None:
    async def main() -> None:
        store = await table.open()
        ends: list[ProgramEnd] = []
        store.subscribe(ends.append)
        await store.begin(start("a", class_id="/chat", prompt_tokens=7), 0.0)
        await store.settle(end("a", 1.0, prompt_tokens=10, cached_tokens=4, output_tokens=3), 1.0)
        inherited = await store.begin(start("b", class_id="/tree", prompt_tokens=9), 2.0)
        assert (inherited.finished_calls, inherited.work) == (1, 102.0)
        await store.settle(end("b", 1.0, prompt_tokens=20, output_tokens=1, is_final=True), 3.0)
        assert ends == [ProgramEnd(program_id="p", class_id="/chat", first_prompt_tokens=7, work=154.0)]
        assert await store.recent_ends() == []

    table.run(main())


def test_known_parents_decide_where_a_call_starts(table: Table) -> None:
    async def main() -> None:
        store = await table.open("atlas-dag")
        await store.begin(start("long"), 0.0)
        await store.begin(start("short"), 0.0)
        await store.settle(end("long", 5.0), 5.0)
        await store.settle(end("short", 1.0), 5.0)
        child = CallStart(key="k", call_id="k", program_id="p", parents=("short",))
        stranger = CallStart(key="l", call_id="l", program_id="p", parents=("elsewhere",))
        expected = Inherited(service_s=1.0, program_service_s=5.0, wait_s=2.0, finished_calls=2, age_s=6.0)
        assert await store.begin(child, 6.0) == expected
        assert (await store.begin(stranger, 6.0)).service_s == 5.0

    table.run(main())


def test_a_hint_counts_down_and_a_class_is_learned(table: Table) -> None:
    async def main() -> None:
        store = await table.open("hinted")
        for number in range(LEAST_PROGRAMS):
            call = CallStart(key=f"{number}", call_id="c", program_id=f"p{number}", name="chat")
            assert (await store.begin(call, 0.0)).expected_s is None
            await store.settle(end(f"{number}", 4.0, program=f"p{number}", is_final=True), 1.0)
        plain = CallStart(key="k", call_id="k", program_id="plain", name="chat")
        assert (await store.begin(plain, 2.0)).expected_s == 4.0
        hinted = CallStart(key="h", call_id="h", program_id="q", name="chat", hint=Hint(calls=3))
        assert (await store.begin(hinted, 2.0)).expected_s == 12.0
        await store.settle(end("h", 4.0, program="q"), 3.0)
        later = CallStart(key="i", call_id="i", program_id="q", name="chat")
        assert (await store.begin(later, 4.0)).expected_s == 8.0

    table.run(main())
