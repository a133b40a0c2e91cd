"""The request that a client leaves open: its end shortens the session's life, a heartbeat restores it."""

from __future__ import annotations

import asyncio

from starlette.types import Receive
from tests.gateway.conftest import Rig, Serve, until_async

from autellix_backend.gateway.http.watches import Watches

SESSIONS = "/autellix/v1/sessions"


async def start(rig: Rig) -> None:
    async with rig.client.post(rig.url + SESSIONS, json={"session_id": "s"}) as answer:
        assert answer.status == 201


async def watch_and_die(rig: Rig) -> None:
    watches, has_come = rig.app.state.watches, asyncio.Event()

    async def until_gone(receive: Receive) -> bool:
        has_come.set()
        return await Watches.until_gone(watches, receive)

    watches.until_gone = until_gone
    watching = asyncio.create_task(rig.client.get(f"{rig.url}{SESSIONS}/s/watch"))
    await has_come.wait()
    assert not watching.done()
    watching.cancel()
    await asyncio.wait((watching,))


async def test_session_of_a_killed_client_ends_soon(serve: Serve) -> None:
    """Not after three heartbeats, but after one and a quarter, in the next round of the reaper."""

    async with serve(heartbeat_s=2.0) as rig:
        await start(rig)
        loop = asyncio.get_running_loop()
        await watch_and_die(rig)
        died_s = loop.time()

        async def is_gone() -> bool:
            return (await rig.store.counts()).sessions == 0

        await until_async(is_gone)
        assert loop.time() - died_s < 6.0


async def test_heartbeat_after_the_watch_keeps_the_session(serve: Serve) -> None:
    async with serve(heartbeat_s=1.0) as rig:
        await start(rig)
        await watch_and_die(rig)
        for _ in range(5):
            async with rig.client.post(f"{rig.url}{SESSIONS}/s/heartbeat", json={}) as answer:
                assert answer.status == 200
            await asyncio.sleep(0.5)


async def test_watch_of_an_unknown_session_is_refused(serve: Serve) -> None:
    async with serve() as rig:
        status, body = await rig.get(f"{SESSIONS}/nobody/watch")
        assert (status, body["error"]["param"]) == (404, "session_id")
