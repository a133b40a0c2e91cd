"""One long answer of each tenant is made at a time."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.waiting import PATIENCE_S

from autellix_backend.console.turns import AnswerTurns
from autellix_backend.gateway.errors import ClientGoneError
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


@pytest.mark.parametrize("messages", [(GONE, GONE), (COMPLETE, GONE)], ids=["within", "after"])
async def test_a_client_that_disconnected_gets_no_turn(messages: tuple[Message, ...]) -> None:
    with pytest.raises(ClientGoneError):
        async with AnswerTurns().turn(Tenant(), ScriptedClient(*messages).request):
            pytest.fail("it has disconnected")


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
