"""What one tenant may hold of what all share: feeds, sessions and open requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.console.http import events
from autellix_backend.gateway.errors import LimitError
from autellix_backend.gateway.http.authentication import Authentication
from autellix_backend.gateway.tenancy import open_sessions
from autellix_backend.gateway.tenancy.open_sessions import OpenSessions
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants, key_line
from autellix_backend.observe.operator_log import AuditLog

HOSTILE, QUIET = ({"authorization": f"Bearer {key}"} for key in ("bad", "good"))


async def test_a_tenants_feeds_leave_room_for_others(
    serve: Any, tenants_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_TENANT_SUBSCRIBERS", 2)
    async with serve(tenants_file=tenants_file) as rig, AsyncExitStack() as stack:
        url = rig.url + events.EVENTS_PATH
        statuses = []
        for headers in (HOSTILE, HOSTILE, HOSTILE, QUIET):
            response = await stack.enter_async_context(rig.client.get(url, headers=headers))
            statuses.append(response.status)
            if response.status == 503:
                assert "the tenant already has 2 subscribers" in (await response.json())["error"]["message"]
    assert statuses == [200, 200, 503, 200]


async def test_a_tenants_sessions_are_bounded(
    serve: Any, tenants_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_sessions, "MAX_SESSIONS", 3)

    async def start(number: int, headers: dict[str, str]) -> int:
        body = {"session_id": f"s{number}"}
        async with rig.client.post(url, json=body, headers=headers) as response:
            if response.status == 429:
                error = (await response.json())["error"]
                assert (error["code"], error["param"]) == ("too_many_sessions", "limits.max_sessions")
            return int(response.status)

    async with serve(tenants_file=tenants_file) as rig:
        url = rig.url + "/autellix/v1/sessions"
        assert [await start(number, HOSTILE) for number in range(4)] == [201, 201, 201, 429]
        # Those that run may be started again, and others have their own number.
        assert [await start(0, HOSTILE), await start(4, QUIET)] == [200, 201]
        async with rig.client.delete(f"{url}/s0", headers=HOSTILE) as response:
            assert response.status == 204
        assert await start(5, HOSTILE) == 201


def test_a_session_without_a_heartbeat_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sessions, "MAX_SESSIONS", 1)
    refused: list[tuple[str, str]] = []
    sessions = OpenSessions(ttl_s=10.0, on_refusal=lambda *refusal: refused.append(refusal))
    tenant = Tenant(name="a")
    sessions.admit(tenant, "a/1", 0.0)
    sessions.keep(tenant, "a/1", 9.0)
    with pytest.raises(LimitError):
        sessions.admit(tenant, "a/2", 18.0)
    sessions.admit(tenant, "a/2", 19.0)
    assert refused == [("a", "too_many_sessions")]
    sessions.expire(30.0)
    assert sessions.count(tenant) == 0


async def test_a_tenants_open_requests_leave_connections_for_others() -> None:
    tenants = {key_line(name): Tenant(name=name) for name in ("hostile", "quiet")}
    keys = {bytes.fromhex(line.removeprefix("sha256:")): tenant for line, tenant in tenants.items()}
    release, all_begun, begun, refused = asyncio.Event(), asyncio.Event(), [], []
    statuses: list[int] = []

    async def app(scope: Any, *_: Any) -> None:
        begun.append(scope)
        if len(begun) == 3:
            all_begun.set()
        await release.wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    guarded = Authentication(
        app, Tenants(keys), lambda *refusal: refused.append(refusal), AuditLog(), max_requests=4
    )

    async def ask(name: str) -> None:
        headers = [(b"authorization", f"Bearer {name}".encode())]
        scope = {"type": "http", "path": "/v1/models", "headers": headers}
        await guarded(scope, None, send)  # type: ignore[arg-type]

    tasks = [asyncio.create_task(ask("hostile")) for _ in range(3)]
    tasks.append(asyncio.create_task(ask("quiet")))
    async with asyncio.timeout(PATIENCE_S):
        await all_begun.wait()
    assert (len(begun), refused, statuses) == (3, [("hostile", "too_many_open_requests")], [503])
    release.set()
    await asyncio.gather(*tasks)
    await ask("hostile")
    assert len(begun) == 4
