"""Sessions and programs over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from tests.gateway.conftest import Serve
from tests.waiting import until
from yarl import URL

from autellix_backend.gateway.sessions.running_sessions import HEARTBEAT_S

SESSIONS = "/autellix/v1/sessions"
PROGRAMS = "/autellix/v1/programs"


async def test_a_session_ends_with_its_programs(serve: Any) -> None:
    async with serve() as rig:
        url = rig.url + SESSIONS
        # Clients written for 0.2.0 may send a program's name, which nothing reads.
        body = {"session_id": "s", "client": "test", "program_name": "p"}
        for status in (201, 200):
            async with rig.client.post(url, json=body) as response:
                assert response.status == status
                started = await response.json()
        assert (started["session_id"], started["heartbeat_s"]) == ("s", HEARTBEAT_S)
        assert started["server"] == "autellix"
        await rig.chat({"X-Autellix-Session-ID": "s", "X-Autellix-Program-ID": "p"})
        async with rig.client.post(url + "/s/heartbeat") as response:
            assert response.status == 200
        async with rig.client.delete(url + "/s") as response:
            assert response.status == 204
        assert (await rig.get(PROGRAMS))[1] == {"programs": [], "has_more": False, "next": None}
        for call in (rig.client.post(url + "/s/heartbeat"), rig.client.delete(url + "/s")):
            async with call as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "not_found"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"session_id": 1}', b'{"session_id": "\\n"}'])
async def test_a_malformed_start_gets_a_400(serve: Any, body: bytes) -> None:
    async with serve() as rig, rig.client.post(rig.url + SESSIONS, data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_programs_are_shown_with_their_calls_and_can_be_ended(serve: Any) -> None:
    async with serve() as rig:
        headers = {"X-Autellix-Program-ID": "p", "X-Autellix-Program-Name": "react"}
        await rig.chat({**headers, "X-Autellix-Call-ID": "a", "X-Autellix-Parent-IDs": "-"})
        await rig.chat({**headers, "X-Autellix-Call-ID": "b", "X-Autellix-Parent-IDs": "a"})
        listed = (await rig.get(PROGRAMS))[1]["programs"]
        assert [(item["program_id"], item["name"]) for item in listed] == [("p", "react")]
        calls = (await rig.get(PROGRAMS + "/p"))[1]["calls"]
        assert [(call["call_id"], call["parents"]) for call in calls] == [("a", []), ("b", ["a"])]
        assert calls[0]["start_s"] == 0.0
        assert calls[1]["start_s"] >= calls[0]["finish_s"]
        assert calls[1]["outcome"] == "ok"
        for status in (204, 404):
            async with rig.client.delete(rig.url + PROGRAMS + "/p") as response:
                assert response.status == status
        assert (await rig.get(PROGRAMS + "/p"))[0] == 404


async def test_a_final_call_ends_its_program(serve: Any) -> None:
    async with serve() as rig:
        await rig.chat({"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true"})
        assert (await rig.get(PROGRAMS + "/p"))[0] == 404


async def test_engines_config_and_metrics_are_shown(serve: Any) -> None:
    async with serve(policy="atlas") as rig:
        await rig.chat()
        engine = (await rig.get("/autellix/v1/engines"))[1]["engines"][0]
        assert (engine["name"], engine["is_alive"], engine["open_calls"]) == ("fake-0", True, 0)
        assert (await rig.get("/autellix/v1/config"))[1]["scheduler"]["policy"] == "atlas"
        async with rig.client.get(rig.url + "/metrics") as response:
            text = await response.text()
        labels = 'engine="fake-0",model="autellix.fake-model",outcome="ok",source="request"'
        assert f"autellix_calls_total{{{labels}}} 1.0" in text
        assert 'autellix_stored{kind="active_calls"} 0.0' in text
        assert 'autellix_reports_total{result="matched"} 1.0' in text


async def test_ids_may_hold_a_slash(serve: Any) -> None:
    async with serve() as rig:
        async with rig.client.post(rig.url + SESSIONS, json={"session_id": "a/s"}) as response:
            assert response.status == 201
        await rig.chat({"X-Autellix-Session-ID": "a/s", "X-Autellix-Program-ID": "a/p"})
        url = URL(rig.url + PROGRAMS + "/a%2Fp", encoded=True)
        async with rig.client.get(url) as response:
            assert (await response.json())["program_id"] == "a/p"
        async with rig.client.delete(url) as response:
            assert response.status == 204
        heartbeat = URL(rig.url + SESSIONS + "/a%2Fs/heartbeat", encoded=True)
        async with rig.client.post(heartbeat) as response:
            assert response.status == 200


@pytest.mark.parametrize("beats_again", [False, True])
async def test_a_session_of_a_killed_client_ends_soon_unless_it_beats_again(
    serve: Serve, beats_again: bool
) -> None:
    """After one and a quarter heartbeats and not after three."""
    now_s = 1000.0
    async with serve(clock=lambda: now_s) as rig:

        async def is_there(at_s: float) -> bool:
            await rig.store.reap(at_s)
            return (await rig.store.counts()).sessions == 1

        async with rig.client.post(rig.url + SESSIONS, json={"session_id": "s"}) as answer:
            assert answer.status == 201
        beats: list[float] = []
        heartbeat = rig.store.heartbeat

        async def noted(session_id: str, now: float) -> bool:
            beats.append(now)
            return bool(await heartbeat(session_id, now))

        with patch.object(rig.store, "heartbeat", noted):
            watching = asyncio.create_task(rig.client.get(f"{rig.url}{SESSIONS}/s/watch"))
            await until(lambda: len(beats) == 1)
            assert not watching.done()
            watching.cancel()
            await until(lambda: len(beats) == 2)
        if beats_again:
            async with rig.client.post(f"{rig.url}{SESSIONS}/s/heartbeat", json={}) as answer:
                assert answer.status == 200
        assert await is_there(now_s + 1.2 * HEARTBEAT_S)
        assert await is_there(now_s + 1.3 * HEARTBEAT_S) == beats_again


async def test_the_watch_of_an_unknown_session_is_refused(serve: Serve) -> None:
    async with serve() as rig:
        status, body = await rig.get(f"{SESSIONS}/nobody/watch")
        assert (status, body["error"]["param"]) == (404, "session_id")


async def test_thunderagents_clients_end_a_program_by_the_name_in_their_bodies(serve: Any) -> None:
    async with serve() as rig:

        async def release(**body: Any) -> tuple[int, Any]:
            async with rig.client.post(rig.url + "/programs/release", json=body) as response:
                return response.status, await response.json()

        await rig.chat(program_id="swe-17")
        await rig.chat(program_id=17)
        assert (await rig.store.counts()).programs == 2
        assert await release(program_id="swe-17") == (200, {"program_id": "swe-17", "released": True})
        assert await release(program_id=17) == (200, {"program_id": "17", "released": True})
        assert await release(program_id="swe-17") == (200, {"program_id": "swe-17", "released": False})
        assert (await rig.store.counts()).programs == 0
        assert (await release())[0] == 400


async def test_thunderagents_clients_end_no_program_of_another_tenant(serve: Any, tenants_file: Any) -> None:
    async with serve(tenants_file=str(tenants_file)) as rig:
        mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("good", "bad"))
        await rig.chat(mine, program_id="swe-17")
        for headers, released in ((theirs, False), (mine, True)):
            url = rig.url + "/programs/release"
            async with rig.client.post(url, json={"program_id": "swe-17"}, headers=headers) as response:
                assert (await response.json())["released"] is released
