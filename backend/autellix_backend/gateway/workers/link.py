"""One end of the connection between a worker and its parent: questions with answers, and notices.

It is a socket pair, which no other process can open. A message is its length in four bytes, then a triple in
MessagePack: a number (positive for a question, negated for its answer, zero for a notice), a kind, and plain
data.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import socket
from collections.abc import Callable
from typing import Any

import msgspec

MAX_WAITING_BYTES = 8 * 2**20
"""Unsent bytes beyond which droppable notices are dropped, because the other process hangs."""
_LENGTH_BYTES = 4
_FAILED = "failed"
UNHANDLED = "a message %r between workers could not be handled"

logger = logging.getLogger(__name__)

Handler = Callable[[Any], Any]
"""Receives the content of a question or notice; returns the answer, or an awaitable of it."""


class LinkLostError(Exception):
    """The other process has ended, or failed to answer."""


class Link:
    """One end."""

    def __init__(self, own: socket.socket) -> None:
        """Take ownership of one socket of a pair."""
        self._socket = own
        self.handlers: dict[str, Handler] = {}
        """By the kind of message."""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect the socket to the running event loop."""
        self._socket.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)

    async def serve(self) -> None:
        """Handle messages until the other end closes."""
        assert self._reader is not None, "it is open"
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                self._take(*msgspec.msgpack.decode(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    async def ask(self, kind: str, content: Any, timeout_s: float) -> Any:
        """Return the answer to a question.

        Raises:
            LinkLostError: if the other process ends before it answers, or fails to.
            TimeoutError: if it takes longer.
        """
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, kind, content)
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._waiting[number]

    def tell(self, kind: str, content: Any, *, may_be_lost: bool = False) -> None:
        """Send a notice; dropped if the other process has ended, or hangs and the notice `may_be_lost`."""
        if self._writer is None or self._writer.is_closing():
            return
        if may_be_lost and self._writer.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            return
        self._send(0, kind, content)

    def close(self) -> None:
        """End the connection; may be called twice."""
        if self._writer is not None:
            self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLostError)
        for task in self._tasks:
            task.cancel()

    def _send(self, number: int, kind: str, content: Any) -> None:
        if self._writer is None or self._writer.is_closing():
            raise LinkLostError
        data = msgspec.msgpack.encode((number, kind, content))
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def _take(self, number: int, kind: str, content: Any) -> None:
        if number < 0:
            self._take_answer(-number, kind, content)
            return
        handler = self.handlers.get(kind)
        if handler is None:
            # A worker may be asked while it still starts.
            self._fail(number)
            return
        try:
            answer = handler(content)
        except Exception:
            # The boundary of a process: a failed answer must not end the connection.
            logger.exception(UNHANDLED, kind)
            self._fail(number)
            return
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._finish(number, kind, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif number:
            self._send(-number, kind, answer)

    def _take_answer(self, number: int, kind: str, content: Any) -> None:
        # The question of a late answer has timed out.
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if kind == _FAILED:
            waiting.set_exception(LinkLostError)
        else:
            waiting.set_result(content)

    async def _finish(self, number: int, kind: str, answer: Any) -> None:
        try:
            content = await answer
            if number:
                self._send(-number, kind, content)
        except LinkLostError:
            pass
        except Exception:
            # The boundary of a process, as above.
            logger.exception(UNHANDLED, kind)
            self._fail(number)

    def _fail(self, number: int) -> None:
        if number and self._writer is not None and not self._writer.is_closing():
            self._send(-number, _FAILED, None)
