"""Bytes of bodies on their way in count against limits before they are read, and as they come."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.errors import BodyTooLargeError, IntakeFullError, LimitError
from autellix_backend.gateway.tenancy.intake import BodyHold, Intake
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.settings import TenantLimits

HOSTILE = Tenant(name="hostile", limits=TenantLimits(max_call_bytes=100))
QUIET = Tenant(name="quiet")


def intake(max_bytes: int = 1000, share: int = 500) -> tuple[Intake, list[tuple[str, str]]]:
    refused: list[tuple[str, str]] = []
    limiter = Limiter(epoch_s=0.0, on_refusal=lambda *_: None)
    return Intake(max_bytes, share, limiter, lambda *refusal: refused.append(refusal)), refused


def test_a_length_above_the_tenants_limit_is_refused_at_once() -> None:
    bodies, refused = intake()
    with bodies.hold(HOSTILE) as hold, pytest.raises(BodyTooLargeError, match=r"limits\.max_call_bytes"):
        hold.expect(101)
    assert refused == [("hostile", "body_too_large")]
    assert bodies.held_bytes == 0


def test_bodies_count_together_as_they_come() -> None:
    bodies, _ = intake()
    with bodies.hold(HOSTILE) as one, bodies.hold(HOSTILE) as other:
        one.add(60)
        other.expect(40)
        other.add(40)
        with pytest.raises(LimitError) as refusal:
            one.add(1)
        assert (refusal.value.code, refusal.value.param) == ("too_many_call_bytes", "limits.max_call_bytes")
        assert bodies.held_bytes == 100
    assert bodies.held_bytes == 0


def test_what_is_announced_takes_nobodys_room() -> None:
    bodies, _ = intake()
    with bodies.hold(HOSTILE) as one, bodies.hold(HOSTILE) as other:
        one.expect(100)
        other.expect(100)
        other.add(100)


def test_a_tenant_has_half_of_the_room_and_leaves_the_other_half() -> None:
    bodies, refused = intake()
    greedy = Tenant(name="greedy")
    with bodies.hold(greedy) as one, bodies.hold(QUIET) as other:
        one.add(500)
        with pytest.raises(IntakeFullError):
            one.add(1)
        other.add(500)
        with bodies.hold(Tenant(name="third")) as third, pytest.raises(IntakeFullError):
            third.add(1)
    assert refused == [("greedy", "overloaded"), ("third", "overloaded")]
    assert bodies.held_bytes == 0


def head(path: str, framing: str, key: str = "bad") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n{framing}\r\n\r\n".encode()


async def sent(rig: Any, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rig.url.rpartition(":")[2]))
    for part in parts:
        writer.write(part)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        got = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in got.lower().split(b"\r\n") if line.startswith(b"content-length"))
        content = await reader.readexactly(int(length.partition(b":")[2]))
    return int(got.split(b" ")[1]), json.loads(content)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
async def test_a_large_body_is_refused_before_it_is_read(serve: Any, tenants_file: Path, path: str) -> None:
    async with serve(tenants_file=tenants_file) as rig:
        reader, writer = await sent(rig, head(path, "content-length: 60000000"))
        status, body = await answer(reader)
        writer.close()
    assert status == 413
    assert "limits.max_call_bytes" in body["error"]["message"]
    assert body.get("type", "error") == "error"


async def test_partial_bodies_of_a_tenant_are_bounded_together(
    serve: Any, tenants_file: Path, wait_until: Any
) -> None:
    async with serve(tenants_file=tenants_file) as rig:
        bodies = rig.app.state.gateway.intake
        part = b"c350\r\n" + b" " * 50_000 + b"\r\n"
        held = [
            await sent(rig, head("/v1/chat/completions", "transfer-encoding: chunked"), part)
            for _ in range(2)
        ]
        await wait_until(lambda: bodies.held_bytes == 100_000)
        refused = [
            await sent(rig, head("/v1/chat/completions", "transfer-encoding: chunked"), part)
            for _ in range(4)
        ]
        for reader, _ in refused:
            status, body = await answer(reader)
            assert (status, body["error"]["code"]) == (429, "too_many_call_bytes")
        assert bodies.held_bytes == 100_000
        call = {"model": "m", "messages": [{"role": "user", "content": "x" * 200_000}]}
        headers = {"authorization": "Bearer good"}
        async with rig.client.post(f"{rig.url}/v1/chat/completions", json=call, headers=headers) as response:
            assert response.status == 200
        for _, writer in (*held, *refused):
            writer.close()
        await wait_until(lambda: bodies.held_bytes == 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_refused_body_does_not_wait_for_the_garbage_collector(
    serve: Any, tenants_file: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    kept: weakref.WeakSet[BodyHold] = weakref.WeakSet()
    hold = Intake.hold

    def note(self: Intake, tenant: Tenant) -> BodyHold:
        made = hold(self, tenant)
        kept.add(made)
        return made

    monkeypatch.setattr(Intake, "hold", note)
    gc.disable()
    try:
        async with serve(tenants_file=tenants_file) as rig:
            part = b"c350\r\n" + b" " * 50_000 + b"\r\n"
            reader, writer = await sent(rig, head(path, "transfer-encoding: chunked"), part * 3)
            assert (await answer(reader))[0] in (413, 429)
            writer.close()
            # As does whatever the frames that read it have, its parts among them.
            await wait_until(lambda: not kept)
    finally:
        gc.enable()
