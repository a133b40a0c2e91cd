"""What reaches the gateway beside plain requests: offers of upgrades, encoded bodies, a slash at the end."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
# The engine reads it, the gateway passes it on.
BODY = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
# As the JDK's client offers it by default, with each plain request.
OFFER = (
    b"POST /tokenize HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: localhost\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n"
)
LENGTH = OFFER + b"Content-length: %d\r\n\r\n" % len(BODY)
CHUNKED = OFFER + b"Transfer-encoding: chunked\r\n\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LAST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def exchange(url: str, parts: Sequence[bytes]) -> bytes:
    """Send the parts, each in a read of its own; return all that comes until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            for part in parts:
                writer.write(part)
                await writer.drain()
                # The server's loop is this one: it reads before the next part.
                await asyncio.sleep(0.01)
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "parts",
    [[LENGTH + BODY + LAST], [LENGTH, BODY + LAST], [CHUNKED + CHUNKS + LAST], [CHUNKED, CHUNKS + LAST]],
    ids=["length", "length-later", "chunked", "chunked-later"],
)
async def test_a_request_that_offers_an_upgrade_keeps_its_body(serve: Any, parts: list[bytes]) -> None:
    """And the body is never taken for a request."""
    async with serve() as rig:
        answers = await exchange(rig.url, parts)
        assert answers.count(b"HTTP/1.1 ") == 2
        assert answers.endswith(b'{"status":"ok"}')
        assert [(request.path, request.body) for request in rig.engine.requests] == [("/tokenize", BODY)]


async def test_a_websocket_is_refused_so_that_the_client_goes_on_at_once(serve: Any) -> None:
    async with serve() as rig:
        offer = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        async with rig.client.get(rig.url + "/v1/responses", headers=offer) as response:
            assert response.status == 426
            assert (await response.json())["error"]["code"] == "upgrade_required"
        async with rig.client.get(rig.url + "/v1/responses") as response:
            assert (response.status, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/autellix/v1/sessions"])
async def test_an_encoded_body_is_refused_by_name(serve: Any, path: str) -> None:
    async with serve() as rig:
        headers = {**JSON, "content-encoding": "gzip"}
        async with rig.client.post(rig.url + path, data=gzip.compress(b"{}"), headers=headers) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (415, "Content-Encoding")
        assert rig.engine.requests == []


async def test_a_slash_behind_models_is_the_list(serve: Any) -> None:
    async with serve() as rig:
        assert await rig.get("/v1/models/") == await rig.get("/v1/models")


async def test_a_request_with_two_lengths_ends_its_connection(serve: Any) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\n"
    lengths = head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serve() as rig:
        answer = await exchange(rig.url, [lengths + b"0\r\n\r\n" + LAST])
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert rig.engine.requests == []
