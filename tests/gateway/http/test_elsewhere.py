"""What one worker shows of programs whose calls another one serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from fastapi import FastAPI
from tests.gateway.conftest import CHAT, HELLO, until
from tests.gateway.workers.links import make_hub, workers_of
from tests.serving import listening

from autellix_backend.core.policies import make_policy
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.app import create_app
from autellix_backend.gateway.http.mark import MISSING_WORKERS
from autellix_backend.gateway.workers.link import Link
from autellix_backend.settings import Settings
from autellix_backend.stores.memory import MemoryStore
from autellix_lab.fakes.engine import FakeBehaviour, FakeEngine

PROGRAMS = "/autellix/v1/programs"
ENGINES = "/autellix/v1/engines"


@dataclass(slots=True)
class TwoWorkers:
    """Two gateways on one table, linked as workers are."""

    client: aiohttp.ClientSession
    urls: list[str]
    engines: list[FakeEngine]
    links: list[Link]
    apps: list[FastAPI]
    store: MemoryStore

    async def call(self, worker: int, program: str, *, is_last: bool = False) -> None:
        headers = {"X-Autellix-Program-ID": program} | ({"X-Autellix-Final": "true"} if is_last else {})
        async with self.client.post(self.urls[worker] + CHAT, json=HELLO, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    async def get(self, worker: int, path: str) -> tuple[dict[str, Any], str | None]:
        """Return an answer, and which workers did not add to it."""
        async with self.client.get(self.urls[worker] + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json(), answer.headers.get(MISSING_WORKERS)


@asynccontextmanager
async def two_workers(answer_s: float = 60.0) -> AsyncIterator[TwoWorkers]:
    store = MemoryStore(make_policy("plas"), program_idle_s=600.0, session_ttl_s=600.0)
    engines = [FakeEngine(), FakeEngine()]
    async with AsyncExitStack() as stack:
        links = await stack.enter_async_context(workers_of(make_hub(2, answer_s), 1, 2))
        urls, apps = [], []
        for engine, link in zip(engines, links, strict=True):
            await engine.start()
            stack.push_async_callback(engine.stop)
            apps.append(create_app(Settings(), engine, store=store, parent=link))
            urls.append(await stack.enter_async_context(listening(apps[-1])))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield TwoWorkers(client, urls, engines, links, apps, store)


@asynccontextmanager
async def open_call(workers: TwoWorkers, worker: int, program: str) -> AsyncIterator[None]:
    """Keep a call open in a worker's engine."""
    gate, engine = asyncio.Event(), workers.engines[worker]
    engine.behaviour = FakeBehaviour(gate=gate)
    call = asyncio.create_task(workers.call(worker, program))
    try:
        await until(lambda: bool(engine.calls))
        yield
    finally:
        gate.set()
        await call


async def test_why_tells_of_the_calls_at_both() -> None:
    async with two_workers() as workers, open_call(workers, 0, "p"), open_call(workers, 1, "p"):
        (first, first_missing), (second, second_missing) = [
            await workers.get(worker, f"{PROGRAMS}/p/why") for worker in (0, 1)
        ]
        ids = [sorted(call["call_id"] for call in why["calls"]) for why in (first, second)]
        assert ids[0] == ids[1]
        assert len(ids[0]) == 2
        assert {call["state"] for call in first["calls"]} == {"sent"}
        assert first_missing is second_missing is None

        # So do the table and the picture.
        table, _ = await workers.get(0, PROGRAMS)
        assert [(row["program_id"], row["active_calls"]) for row in table["programs"]] == [("p", 2)]
        timeline, _ = await workers.get(1, f"{PROGRAMS}/p/timeline")
        assert sorted(call["call_id"] for call in timeline["calls"]) == ids[0]


async def test_a_worker_that_hangs_is_named_and_no_more() -> None:
    async def never(_content: object) -> None:
        await asyncio.Event().wait()

    async with two_workers(answer_s=0.1) as workers, open_call(workers, 0, "p"):
        workers.links[1].handlers["open_calls"] = never
        why, missing = await workers.get(0, f"{PROGRAMS}/p/why")
        assert len(why["calls"]) == 1
        assert missing == "2"
        _, missing = await workers.get(0, PROGRAMS)
        assert missing == "2"


async def test_an_ended_program_has_its_calls_of_both_at_either() -> None:
    async with two_workers() as workers:
        await workers.call(0, "p")
        await workers.call(1, "p")
        living = [(await workers.get(worker, f"{PROGRAMS}/p/timeline"))[0] for worker in (0, 1)]
        assert [len(timeline["calls"]) for timeline in living] == [2, 2]

        await workers.call(1, "other", is_last=True)
        await workers.call(0, "p", is_last=True)
        shown = [(await workers.get(worker, "/autellix/v1/history/p"))[0] for worker in (0, 1)]
        assert shown[0]["calls"] == shown[1]["calls"]
        assert len(shown[0]["calls"]) == 3
        lists = [(await workers.get(worker, "/autellix/v1/history"))[0] for worker in (0, 1)]
        assert [[row["program_id"] for row in found["programs"]] for found in lists] == [["p", "other"]] * 2
        assert lists[0]["programs"][0]["finished_calls"] == 3
        why, _ = await workers.get(1, f"{PROGRAMS}/other/why")
        assert (await workers.get(0, f"{PROGRAMS}/other/why"))[0] == why


async def test_a_feed_has_the_calls_of_both() -> None:
    async with two_workers() as workers:
        url = f"{workers.urls[0]}/autellix/v1/events"
        async with workers.client.get(url) as feed:
            assert await feed.content.readline() == b": listening\n"
            # The other worker hears of the listener from the parent.
            found: list[tuple[str, str]] = []
            while ("settled", "q") not in found:
                await workers.call(1, "q")
                await workers.call(0, "p", is_last=True)
                found += await events_to(feed, "p")
        assert ("program_ended", "p") in found
        async with workers.client.get(url) as feed:
            assert await feed.content.readline() == b": listening\n"


async def events_to(feed: aiohttp.ClientResponse, ended: str) -> list[tuple[str, str]]:
    """Return the kinds and programs of events up to the end of a program."""
    found: list[tuple[str, str]] = []
    kind = ""
    while ("program_ended", ended) not in found:
        name, _, value = (await feed.content.readline()).decode().strip().partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            found.append((kind, json.loads(value).get("program_id")))
    return found


@asynccontextmanager
async def running(engine: FakeEngine) -> AsyncIterator[FakeEngine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def states(table: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {engine["name"]: (engine["state"], engine["base_url"]) for engine in table["engines"]}


async def change(workers: TwoWorkers, method: str, path: str, **options: Any) -> tuple[int, str, str | None]:
    async with workers.client.request(method, workers.urls[0] + ENGINES + path, **options) as answer:
        return answer.status, await answer.text(), answer.headers.get(MISSING_WORKERS)


async def test_engines_join_drain_and_leave_at_every_worker() -> None:
    async with two_workers() as workers, running(FakeEngine()) as third:
        status, text, missing = await change(
            workers, "POST", "", json={"url": third.base_url, "name": "third"}
        )
        assert (status, missing) == (201, None), text
        for worker in (0, 1):
            found = states((await workers.get(worker, ENGINES))[0])
            assert found["third"] == ("up", third.base_url)

        assert (await change(workers, "POST", "/third/drain"))[0] == 200
        assert states((await workers.get(1, ENGINES))[0])["third"][0] == "draining"
        assert (await change(workers, "POST", "/third/undrain"))[0] == 200
        assert states((await workers.get(1, ENGINES))[0])["third"][0] == "up"
        assert (await change(workers, "DELETE", "/third"))[0] == 202
        for worker in (0, 1):
            await until(partial(gone, workers.apps[worker], "third"))


def gone(app: FastAPI, name: str) -> bool:
    return app.state.pool.find(name) is None


async def test_a_change_that_another_worker_cannot_make_is_a_conflict() -> None:
    async with two_workers() as workers, running(FakeEngine()) as third:
        engine = RemoteEngine(third.base_url, name="third")
        await engine.start()
        workers.apps[0].state.pool.join(engine)
        status, text, _ = await change(workers, "POST", f"/{workers.engines[0].name}/drain")
        # It is the other worker's only engine.
        assert status == 409
        assert "worker 2" in text


async def test_a_worker_that_does_not_answer_about_engines_is_named() -> None:
    async with two_workers(answer_s=0.05) as workers, running(FakeEngine()) as third:

        async def hang(_content: object) -> None:
            await asyncio.Event().wait()

        workers.links[1].handlers["join"] = hang
        status, _, missing = await change(workers, "POST", "", json={"url": third.base_url})
        assert (status, missing) == (201, "2")


async def test_a_worker_that_starts_later_has_the_engines_of_the_others() -> None:
    async with two_workers() as workers, running(FakeEngine()) as third:
        await change(workers, "POST", "", json={"url": third.base_url, "name": "third"})
        for app in workers.apps:
            name = next(iter(app.state.pool)).engine.name
            app.state.pool.drain(name)
        # As the parent makes one in place of a worker that has died.
        link = workers.links[1]
        app = create_app(Settings(), FakeEngine(name=name), store=workers.store, parent=link)
        await app.state.components.operations.catch_up()
        pool = app.state.pool
        assert [handle.engine.name for handle in pool] == [name, "third"]
        assert [handle.is_draining for handle in pool] == [True, False]
