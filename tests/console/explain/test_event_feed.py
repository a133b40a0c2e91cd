"""The event feed: its subscribers, and that slow ones delay nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour
from tests.gateway.snapshots import snapshot, standing
from tests.waiting import PATIENCE_S

from autellix_backend.console.explain import event_feed as events
from autellix_backend.console.explain.event_feed import EventFeed
from autellix_backend.console.http import events as events_api
from autellix_backend.gateway.tenancy.tenants import Tenant

EVENTS = "/autellix/v1/events"
ADMIN = Tenant(is_admin=True)


def make_feed() -> tuple[EventFeed, list[None]]:
    drops: list[None] = []
    return EventFeed(lambda _: None, lambda: 7.0, lambda: drops.append(None)), drops


async def taken(subscription: Any) -> tuple[list[str], int]:
    """Return the kinds of what came, and how many were missed."""
    found, dropped = await asyncio.wait_for(subscription.take(), PATIENCE_S)
    return [event.kind for event in found], dropped


async def test_a_subscriber_receives_events_while_it_is_connected() -> None:
    feed, _ = make_feed()
    feed.on_program_ended("before")
    with feed.subscribe(ADMIN) as subscription:
        assert feed.subscriber_count == 1
        feed.on_program_ended("p")
        feed.engine_changed("replica-0", "down", "it ended")
        assert await taken(subscription) == (["program_ended", "engine"], 0)
    assert feed.subscriber_count == 0


async def test_a_slow_subscriber_gets_the_number_of_missed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_PENDING", 3)
    feed, drops = make_feed()
    with feed.subscribe(ADMIN) as slow, feed.subscribe(ADMIN, ("p4",)) as other:
        for number in range(5):
            feed.on_program_ended(f"p{number}")
        assert await taken(slow) == (["program_ended"] * 3, 2)
        assert await taken(other) == (["program_ended"], 0)
        feed.on_program_ended("p")
        assert await taken(slow) == (["program_ended"], 0)
    assert len(drops) == 2


async def test_a_tenant_receives_events_of_its_own_programs_only() -> None:
    feed, _ = make_feed()
    with feed.subscribe(Tenant(name="a")) as subscription:
        feed.on_program_ended("b/p")
        feed.engine_changed("replica-0", "down", None)
        feed.on_program_ended("a/p")
        found, _ = await asyncio.wait_for(subscription.take(), PATIENCE_S)
    assert [event.program_id for event in found] == ["a/p"]
    data = events_api.encode_event(found[0], Tenant(name="a"))
    assert data == b'event: program_ended\ndata: {"at":7.0,"program_id":"p"}\n\n'


class Listener:
    """Reads a feed into a list of (kind, content)."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def until(self, *kinds: str) -> list[dict[str, Any]]:
        """Read until so many events of these kinds in this order came; return their contents."""
        async with asyncio.timeout(PATIENCE_S):
            while [kind for kind, _ in self.heard] != list(kinds):
                kind = (await self._response.content.readline()).decode()
                if kind.startswith("event: "):
                    data = (await self._response.content.readline()).decode()
                    content = json.loads(data.removeprefix("data: "))
                    self.heard.append((kind.removeprefix("event: ").strip(), content))
        return [content for _, content in self.heard]


async def listening(response: aiohttp.ClientResponse) -> Listener:
    assert response.content_type == "text/event-stream"
    assert await response.content.readline() == b": listening\n"
    return Listener(response)


async def test_events_of_calls_and_programs_are_sent_over_http(serve: Any) -> None:
    async with serve() as rig, rig.client.get(rig.url + EVENTS) as response:
        listener = await listening(response)
        await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true"})
        begun, settled, ended = await listener.until("begun", "settled", "program_ended")
        assert (begun["program_id"], begun["level"]) == ("p", 1)
        assert (settled["call_id"], settled["outcome"]) == (begun["call_id"], "ok")
        assert settled["output_tokens"] == 4
        assert (ended["program_id"], set(ended)) == ("p", {"at", "program_id"})


async def test_a_straggler_is_published_and_listed(serve: Any) -> None:
    """A program that takes far longer than its group's, once half of that has ended."""

    def member(program: str, *, is_last: bool = False) -> dict[str, str]:
        named = {"X-Autellix-Program-ID": program, "X-Autellix-Group": "g17"}
        return named | ({"X-Autellix-Final": "true"} if is_last else {})

    async with serve() as rig:
        await rig.chat(member("slow"))
        async with rig.client.get(rig.url + EVENTS + "?program=slow") as response:
            listener = await listening(response)
            await rig.chat(member("fast", is_last=True))
            (late,) = await listener.until("straggler")
        assert (late["program_id"], late["group"], late["name"]) == ("slow", "g17", None)
        assert late["over_median"] == late["age_s"] / late["median_s"] > 2
        (shown,) = (await rig.get("/autellix/v1/programs?group=g17"))[1]["programs"]
        assert (shown["program_id"], shown["group"]) == ("slow", "g17")
        assert shown["over_median"] > late["over_median"]


async def test_the_feed_can_be_filtered_by_program(serve: Any) -> None:
    async with serve() as rig, rig.client.get(rig.url + EVENTS + "?program=a%2Fb") as response:
        listener = await listening(response)
        await rig.chat({"X-Autellix-Program-ID": "other"})
        await rig.chat({"X-Autellix-Program-ID": "a/b"})
        told = await listener.until("begun", "settled")
        assert {event["program_id"] for event in told} == {"a/b"}
        status, error = await rig.get(EVENTS + "?program=")
        assert (status, error["error"]["param"]) == (400, "program")


async def test_promotions_and_preemptions_are_derived_from_snapshots(serve: Any, tell: Any) -> None:
    behaviour = FakeBehaviour(output_tokens=1000, token_delay_s=0.01)
    async with serve(behaviour) as rig, rig.client.get(rig.url + EVENTS) as response:
        listener = await listening(response)
        call = asyncio.create_task(rig.chat({"X-Autellix-Program-ID": "p"}))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        key = rig.engine.calls[0].json["vllm_xargs"]["autellix_call"]
        for fields in ({}, {"promotions": 1}, {"promotions": 1, "preemptions": 1}):
            await tell(rig, snapshot(standing("p", place=1, level=1, call_id=key, **fields)))
        begun, promoted, preempted = await listener.until("begun", "promoted", "preempted")
        assert promoted["call_id"] == preempted["call_id"] == begun["call_id"]
        assert promoted["waited_s"] == 4.2
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_feed_ends_with_its_client(serve: Any, wait_until: Any) -> None:
    async with serve() as rig:
        async with rig.client.get(rig.url + EVENTS) as response:
            await listening(response)
            assert "autellix_event_subscribers 1.0" in await metrics_of(rig)
        async with asyncio.timeout(PATIENCE_S):
            while "autellix_event_subscribers 0.0" not in await metrics_of(rig):  # noqa: ASYNC110 - it tells when asked
                await asyncio.sleep(0.01)
        assert not [task for task in asyncio.all_tasks() if "Subscription.take" in str(task.get_coro())]


async def test_the_number_of_feeds_is_bounded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_api, "MAX_SUBSCRIBERS", 1)

    async with serve() as rig, rig.client.get(rig.url + EVENTS) as first:
        await listening(first)
        async with rig.client.get(rig.url + EVENTS) as second:
            error = (await second.json())["error"]
            assert (second.status, error["code"]) == (503, "too_many_subscribers")
            assert "already has 1 subscribers" in error["message"]
            assert second.headers["x-should-retry"] == "true"
        assert "autellix_event_subscribers 1.0" in await metrics_of(rig)


async def test_a_feed_ends_with_the_server(serve: Any) -> None:
    """The listener's connection is closed in good order, at once."""

    async with aiohttp.ClientSession() as client, asyncio.timeout(PATIENCE_S):
        async with serve() as rig:
            response = await client.get(rig.url + EVENTS)
            await listening(response)
        assert await response.read() == b"\n"


async def test_a_silent_feed_sends_comments(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_api, "KEEP_ALIVE_S", 0.02)

    async with serve() as rig, rig.client.get(rig.url + EVENTS) as response:
        await listening(response)
        async with asyncio.timeout(PATIENCE_S):
            while await response.content.readline() != b": alive\n":
                pass


async def metrics_of(rig: Any) -> str:
    async with rig.client.get(rig.url + "/metrics") as response:
        text: str = await response.text()
        return text
