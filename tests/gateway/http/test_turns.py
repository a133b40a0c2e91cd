"""Turns for long answers: one at a time for each tenant, none for those who left, and pauses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.http import rounds, turns
from autellix_backend.gateway.http.turns import AnswerTurns, RequestTurns
from autellix_backend.gateway.requests import ClientGoneError
from autellix_backend.gateway.tenancy.tenants import Tenant

GONE: Message = {"type": "http.disconnect"}
COMPLETE: Message = {"type": "http.request", "body": b"", "more_body": False}
PART: Message = {"type": "http.request", "body": b"x" * 65536, "more_body": True}


class ScriptedClient:
    """Sends some messages, and then nothing more."""

    def __init__(self, *messages: Message) -> None:
        self.left = list(messages)
        self.request = Request({"type": "http", "method": "GET", "headers": []}, self._receive)

    async def _receive(self) -> Message:
        if not self.left:
            await asyncio.Event().wait()
        return self.left.pop(0)


def _counted(made: RequestTurns) -> tuple[Counter[str], Callable[[str], Coroutine[None, None, None]]]:
    """Return how many requests of each tenant have begun, and what asks for one more."""
    begun: Counter[str] = Counter()

    async def ask(tenant: str) -> None:
        await made.begin(tenant, {})
        begun[tenant] += 1

    return begun, ask


async def _rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_request_of_each_tenant_begins_in_a_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "BURST", 1)
    made = RequestTurns()
    begun: list[str] = []

    async def ask(tenant: str) -> None:
        await made.begin(tenant, {})
        begun.append(tenant)

    await ask("quiet")
    tasks = [asyncio.create_task(ask("hostile")) for _ in range(20)]
    await _rounds(4 * turns.TURN_ROUNDS)
    early = len(begun)
    assert 4 <= early <= 6
    tasks.append(asyncio.create_task(ask("quiet")))
    await _rounds(2)
    assert begun.count("quiet") == 2
    assert len(begun) <= early + 2
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks)
    assert (begun.count("hostile"), begun.count("quiet")) == (20, 2)


async def test_a_tenant_with_few_requests_waits_for_no_turn() -> None:
    """Its few at once are no flood; only what it goes on sending begins some rounds apart."""
    begun, ask = _counted(RequestTurns())
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(3 * turns.BURST):
            group.create_task(ask("hostile"))
        for _ in range(turns.BURST):
            group.create_task(ask("quiet"))
        await _rounds(1)
        assert begun == {"hostile": turns.BURST, "quiet": turns.BURST}
        # Its burst comes back with the rounds, as the requests that wait begin.
        await _rounds(2 * turns.TURN_ROUNDS)
        assert turns.BURST < begun["hostile"] <= turns.BURST + 2
    assert begun["hostile"] == 3 * turns.BURST


async def test_long_rounds_cost_others_than_the_crowded_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "BURST", 1)
    begun, ask = _counted(RequestTurns())
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for tenant in ["quiet"] + ["hostile"] * 3:
            group.create_task(ask(tenant))
        await _rounds(1)
        # Each round is longer than the rounds of a turn together.
        monkeypatch.setattr(turns, "LONG_ROUND_S", 1e-12)
        await _rounds(1)
        group.create_task(ask("quiet"))
        await _rounds(1)
        assert begun == {"quiet": 2, "hostile": 1}
    assert begun["hostile"] == 3


async def test_a_tenant_that_is_alone_waits_for_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SHARED_S", -1.0)
    made = RequestTurns()
    begun: list[int] = []

    async def ask(number: int) -> None:
        await made.begin("a", {})
        begun.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(ask(number))
        await _rounds(1)
        assert begun == [*range(10)]


async def test_requests_of_a_tenant_begin_in_the_order_in_which_they_came() -> None:
    made = RequestTurns()
    begun: list[int] = []

    async def ask(number: int) -> None:
        await made.begin("a", {})
        begun.append(number)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(ask(number) for number in range(10)))
    assert begun == [*range(10)]


async def test_a_request_whose_client_left_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "BURST", 1)
    made = RequestTurns()
    tasks = [asyncio.create_task(made.begin("a", {})) for _ in range(20)]
    await _rounds(1)
    for task in tasks[1:19]:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks, return_exceptions=True)
        # All is forgotten: the next one begins at once.
        await _rounds(turns.TURN_ROUNDS + 2)
        next_one = asyncio.create_task(made.begin("a", {}))
        await _rounds(1)
        assert next_one.done()
    assert [task.cancelled() for task in tasks] == [False] + [True] * 18 + [False]


async def test_a_request_whose_client_left_while_it_waited_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of clients that left take no turns of the others, and few of them end in a round."""
    monkeypatch.setattr(turns, "BURST", 1)
    monkeypatch.setattr(turns, "has_left", lambda scope: scope["path"] == "/gone")
    made = RequestTurns()
    paths = ["/first"] + ["/gone"] * 100 + ["/there"]
    tasks = [asyncio.create_task(made.begin("a", {"path": path})) for path in paths]
    most = 0
    async with asyncio.timeout(PATIENCE_S):
        while not tasks[-1].done():
            before = sum(task.done() for task in tasks)
            await _rounds(1)
            most = max(most, sum(task.done() for task in tasks) - before)
    assert [task.result() for task in tasks] == [True] + [False] * 100 + [True]
    assert most <= turns.MAX_LEFT


@pytest.mark.parametrize("messages", [(GONE, GONE), (COMPLETE, GONE)], ids=["within", "after"])
async def test_a_client_that_left_gets_no_turn(messages: tuple[Message, ...]) -> None:
    with pytest.raises(ClientGoneError):
        async with AnswerTurns().turn(Tenant(), ScriptedClient(*messages).request):
            pytest.fail("it has left")


async def test_a_body_without_end_is_not_read() -> None:
    client = ScriptedClient(*[PART] * 100)
    async with asyncio.timeout(PATIENCE_S), AnswerTurns().turn(Tenant(), client.request):
        assert len(client.left) == 98


async def test_a_tenant_has_one_turn_at_a_time_and_others_have_theirs() -> None:
    made = AnswerTurns()
    order: list[str] = []
    may_end = asyncio.Event()
    has_begun = asyncio.Event()

    async def answer(tenant: str, name: str) -> None:
        async with made.turn(Tenant(name=tenant), ScriptedClient(COMPLETE).request):
            order.append(name)
            if name == "first":
                has_begun.set()
                await may_end.wait()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(answer("a", "first"))
        await has_begun.wait()
        group.create_task(answer("a", "second"))
        await answer("b", "other")
        may_end.set()
    assert order == ["first", "other", "second"]
