"""The scripts of the shared table: whom they reach, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.redis_server import RedisServer
from tests.stores.tables import TIMEOUT_S
from tests.waiting import wait_until

from autellix_backend.stores.base import StoreUnavailableError
from autellix_backend.stores.redis_scripts import RedisScripts

PASSWORD = "p@ss/word"
QUOTED = "p%40ss%2Fword"


@pytest.fixture
def locked_server(redis_program: str, tmp_path: Path) -> Iterator[RedisServer]:
    """Yield a server with a password and a unix socket."""
    server = RedisServer(
        redis_program, tmp_path, "--requirepass", PASSWORD, "--unixsocket", str(tmp_path / "redis.sock")
    )
    server.start()
    try:
        # Redis listens there a moment later than at its port.
        wait_until(lambda: listens(tmp_path / "redis.sock"))
        yield server
    finally:
        server.stop()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@contextlib.asynccontextmanager
async def linked(url: str) -> AsyncIterator[RedisScripts]:
    link = RedisScripts(url, key_prefix="x", timeout_s=TIMEOUT_S)
    try:
        yield link
    finally:
        await link.close()


async def time_at(url: str) -> float:
    async with linked(url) as link:
        return float(await link.run("time"))


async def test_a_password_opens_the_connection(locked_server: RedisServer, tmp_path: Path) -> None:
    assert await time_at(f"redis://:{QUOTED}@127.0.0.1:{locked_server.port}") > 0
    assert await time_at(f"unix://:{QUOTED}@{tmp_path}/redis.sock") > 0


@pytest.mark.parametrize("who", ["", ":wrong@", "nobody:wrong@"])
async def test_a_wrong_password_is_an_error_that_does_not_show_it(
    locked_server: RedisServer, who: str
) -> None:
    with pytest.raises(StoreUnavailableError, match=r"Authentication|username-password") as caught:
        await time_at(f"redis://{who}127.0.0.1:{locked_server.port}")
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [("unix:///nowhere/none.sock", "No such file"), ("redis://a..b", "label empty or too long")],
)
async def test_an_address_where_nothing_is_is_an_error(url: str, problem: str) -> None:
    with pytest.raises(StoreUnavailableError, match=problem):
        await time_at(url)


async def test_an_operation_that_waits_for_a_connection_is_served_before_later_ones(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autellix_backend.stores.redis_scripts.MAX_CONNECTIONS", 1)
    served: list[str] = []
    async with linked(redis_server.url) as scripts:

        async def busy() -> None:
            for _ in range(20):
                await scripts.run("time")
                served.append("busy")

        async def patient() -> None:
            await scripts.run("time")
            served.append("patient")

        await asyncio.gather(busy(), patient())
    assert served.index("patient") == 1
