"""Calls go to their endpoints past the framework, and fail as its routes do."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from autellix_backend.gateway.errors import ClientGoneError
from autellix_backend.gateway.http.call_paths import CallPaths


class Marked:
    """Middleware of ours, which every request has to pass."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["marked"] = True
        await self._app(scope, receive, send)


async def ask(app: FastAPI, path: str, method: str = "POST") -> list[Message]:
    """Send one request to an app; return what it sends."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start" and sent:
            raise RuntimeError("the answer has begun")
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
    }
    await app(scope, receive, send)
    return sent


def app_of(endpoint: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(CallPaths, calls={"/call": endpoint})
    app.add_middleware(Marked)
    return app


async def test_a_call_passes_our_middleware_and_no_route() -> None:
    seen: list[Scope] = []

    async def endpoint(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = app_of(endpoint)
    assert (await ask(app, "/call"))[0]["status"] == 200
    assert seen[0]["marked"] is True
    assert "router" not in seen[0]
    # Everything else is the routes' business.
    assert (await ask(app, "/call", "GET"))[0]["status"] == 404
    assert (await ask(app, "/other"))[0]["status"] == 404
    assert len(seen) == 1


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_crash_is_answered_and_goes_to_the_servers_log(has_begun: bool) -> None:
    sent: list[Message] = []

    async def endpoint(_scope: Scope, _receive: Receive, send: Send) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    async def keep(scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            await send(message)
            sent.append(message)

        await endpoint(scope, receive, noted)

    with pytest.raises(ZeroDivisionError):
        await ask(app_of(keep), "/call")
    assert len(sent) == has_begun


async def test_nobody_answers_a_client_that_has_gone() -> None:
    async def endpoint(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ClientGoneError

    assert await ask(app_of(endpoint), "/call") == []


async def test_a_slash_at_the_end_makes_no_difference(serve: Any) -> None:
    async with serve() as rig:
        body = {"model": "autellix.fake-model", "messages": []}
        async with rig.client.post(rig.url + "/v1/chat/completions/", json=body) as response:
            assert (response.status, "autellix" in await response.json()) == (200, True)
