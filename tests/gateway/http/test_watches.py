"""The request that a client leaves open: its end shortens the session's life, a heartbeat restores it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

from starlette.types import Receive
from tests.gateway.conftest import Rig, Serve, until

from autellix_backend.gateway.http.sessions import HEARTBEAT_S
from autellix_backend.gateway.http.watches import Watches

SESSIONS = "/autellix/v1/sessions"


class WatchedSession:
    """A session whose client dies, at a gateway whose time passes only by pass_time()."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.rig: Rig

    async def is_there_after(self, heartbeats: float) -> bool:
        """Let so many heartbeats' time pass; return whether the session is left."""
        self.now_s += heartbeats * HEARTBEAT_S
        await self.rig.store.reap(self.now_s)
        return (await self.rig.store.counts()).sessions == 1


@asynccontextmanager
async def session_of_a_dead_client(serve: Serve) -> AsyncIterator[WatchedSession]:
    """Start a session with a watch, end the watch, and wait until the gateway has noticed."""
    session = WatchedSession()
    async with serve(clock=lambda: session.now_s) as rig:
        session.rig = rig
        async with rig.client.post(rig.url + SESSIONS, json={"session_id": "s"}) as answer:
            assert answer.status == 201
        watches, has_come = rig.app.state.watches, asyncio.Event()

        async def until_gone(receive: Receive) -> bool:
            has_come.set()
            return await Watches.until_gone(watches, receive)

        watches.until_gone = until_gone
        watching = asyncio.create_task(rig.client.get(f"{rig.url}{SESSIONS}/s/watch"))
        await has_come.wait()
        assert not watching.done()
        beats: list[float] = []
        heartbeat = rig.store.heartbeat

        async def noted(session_id: str, now: float) -> bool:
            beats.append(now)
            return bool(await heartbeat(session_id, now))

        with patch.object(rig.store, "heartbeat", noted):
            watching.cancel()
            await until(lambda: bool(beats))
        yield session


async def test_session_of_a_killed_client_ends_soon(serve: Serve) -> None:
    """Not after three heartbeats, but after one and a quarter."""
    async with session_of_a_dead_client(serve) as session:
        assert await session.is_there_after(1.2)
        assert not await session.is_there_after(0.1)


async def test_heartbeat_after_the_watch_keeps_the_session(serve: Serve) -> None:
    async with session_of_a_dead_client(serve) as session:
        async with session.rig.client.post(f"{session.rig.url}{SESSIONS}/s/heartbeat", json={}) as answer:
            assert answer.status == 200
        assert await session.is_there_after(2.9)


async def test_watch_of_an_unknown_session_is_refused(serve: Serve) -> None:
    async with serve() as rig:
        status, body = await rig.get(f"{SESSIONS}/nobody/watch")
        assert (status, body["error"]["param"]) == (404, "session_id")
