"""The connection to Redis, most of it before a server whose answers the tests write themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import hiredis
import pytest
from tests.redis_server import RedisServer
from tests.stores.tables import TIMEOUT_S

from autellix_backend.stores.base import StoreUnavailableError
from autellix_backend.stores.redis_link import RedisLink

NO_SCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"


class WrittenServer:
    """A server of one connection after the other; a script's last argument is its name here."""

    def __init__(self) -> None:
        self.connections = 0
        self.commands: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """The command and the name of each script that arrived."""
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read commands; only those that set up the connection are answered here."""
        self.connections += 1
        self._writer = writer
        commands = hiredis.Reader()
        while data := await reader.read(65536):
            commands.feed(data)
            while (command := commands.gets()) is not False:
                if command[0].startswith(b"EVAL"):
                    self.commands.put_nowait((command[0].decode(), command[-1].decode()))
                else:
                    writer.write(b"+OK\r\n")
        writer.close()

    def answer(self, data: bytes) -> None:
        """Send bytes on the newest connection."""
        assert self._writer is not None
        self._writer.write(data)

    def hang_up(self) -> None:
        """Close the newest connection."""
        assert self._writer is not None
        self._writer.close()

    async def arrived(self, *names: str) -> None:
        """Wait until exactly these scripts have arrived."""
        assert [(await self.commands.get())[1] for _ in names] == list(names)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[WrittenServer, RedisLink]]:
    """Yield a server and a link to it."""
    server = WrittenServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    link = RedisLink(f"redis://127.0.0.1:{port}", key_prefix="x", timeout_s=TIMEOUT_S)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield server, link
    finally:
        await link.close()
        listening.close()


async def run(link: RedisLink, name: str) -> object:
    return await link.run("time", name)


async def answers_now(link: RedisLink) -> bool:
    try:
        return float(await link.run("time")) > 0
    except StoreUnavailableError:
        return False


async def test_no_script_waits_for_the_answers_of_earlier_ones() -> None:
    async with linked() as (server, link):
        first = asyncio.create_task(run(link, "first"))
        await server.arrived("first")
        second = asyncio.create_task(run(link, "second"))
        await server.arrived("second")
        server.answer(b"+one\r\n+two\r\n")
        assert await first == b"one"
        assert await second == b"two"
        assert server.connections == 1


async def test_the_answer_to_a_caller_that_left_is_nobody_elses() -> None:
    async with linked() as (server, link):
        left, stayed = asyncio.create_task(run(link, "left")), asyncio.create_task(run(link, "stayed"))
        await server.arrived("left", "stayed")
        left.cancel()
        await asyncio.wait((left,))
        server.answer(b"+one\r\n+two\r\n")
        assert await stayed == b"two"
        assert server.connections == 1


async def test_a_refusal_is_of_its_own_script() -> None:
    async with linked() as (server, link):
        bad, good = asyncio.create_task(run(link, "bad")), asyncio.create_task(run(link, "good"))
        await server.arrived("bad", "good")
        server.answer(b"-ERR no such thing\r\n+two\r\n")
        assert await good == b"two"
        with pytest.raises(StoreUnavailableError, match="no such thing"):
            await bad


async def test_a_script_whose_text_is_unknown_too_is_an_error() -> None:
    async with linked() as (server, link):
        asked = asyncio.create_task(run(link, "asked"))
        assert await server.commands.get() == ("EVALSHA", "asked")
        server.answer(NO_SCRIPT)
        assert await server.commands.get() == ("EVAL", "asked")
        server.answer(NO_SCRIPT)
        with pytest.raises(StoreUnavailableError, match="No matching script") as caught:
            await asked
        # The server is at fault, not the script.
        assert type(caught.value) is StoreUnavailableError


async def test_a_connection_that_ends_fails_all_that_is_pending() -> None:
    async with linked() as (server, link):
        pending = [asyncio.create_task(run(link, name)) for name in ("a", "b")]
        await server.arrived("a", "b")
        server.hang_up()
        answers = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailableError] * 2


@pytest.mark.parametrize("data", [b"+an answer to no script\r\n", b"no answer at all\r\n", b""])
async def test_a_connection_that_ended_meanwhile_is_replaced(data: bytes) -> None:
    """Whatever ended it: with nothing pending, nobody sees an error."""
    async with linked() as (server, link):
        first = asyncio.create_task(run(link, "first"))
        await server.arrived("first")
        server.answer(b"+one\r\n")
        await first
        if data:
            server.answer(data)
        else:
            server.hang_up()
        assert link._pipeline is not None
        await link._pipeline.closed()
        again = asyncio.create_task(run(link, "again"))
        await server.arrived("again")
        server.answer(b"+two\r\n")
        assert await again == b"two"
        assert server.connections == 2


async def test_a_silent_server_is_an_error_in_bounded_time(redis_program: str, tmp_path: Path) -> None:
    server = RedisServer(redis_program, tmp_path)
    server.start()
    try:
        link = RedisLink(server.url, key_prefix="x", timeout_s=1.0)
        async with asyncio.timeout(TIMEOUT_S):
            while not await answers_now(link):
                pass
        server.freeze()
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*(link.run("time") for _ in range(5)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailableError}
        server.thaw()
        async with asyncio.timeout(TIMEOUT_S):
            while not await answers_now(link):
                pass
        await link.close()
    finally:
        server.stop()
