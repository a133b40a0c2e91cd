"""Work that lives as long as its client is connected."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from autellix_backend.gateway.errors import NotFoundError
from autellix_backend.gateway.requests import run_while_connected


class Client:
    """A client that leaves when told to."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()

    async def receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def test_work_ends_by_itself_and_its_error_is_raised() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise NotFoundError("nothing")

    with pytest.raises(NotFoundError):
        await run_while_connected(fail(), Client().receive)


async def test_a_client_that_leaves_ends_the_work_and_nothing_else() -> None:
    client, states = Client(), list[str]()

    async def work() -> None:
        try:
            client.leaves.set()
            await asyncio.Event().wait()
        finally:
            states.append("ended")

    await run_while_connected(work(), client.receive)
    assert states == ["ended"]
    # The task itself goes on, and can be cancelled as ever.
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("leaves_too", [False, True])
async def test_a_cancelled_server_ends_the_work_and_is_cancelled(leaves_too: bool) -> None:
    client, states = Client(), list[str]()
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            states.append("ended")

    task = asyncio.create_task(run_while_connected(work(), client.receive))
    await began.wait()
    if leaves_too:
        client.leaves.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states == ["ended"]


async def test_work_that_ends_as_its_client_leaves_has_ended() -> None:
    client = Client()

    async def work() -> None:
        client.leaves.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # It was as good as done.
            return

    await run_while_connected(work(), client.receive)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
