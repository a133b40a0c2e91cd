"""Ends the wait for bodies that can no longer arrive.

If an engine breaks HTTP's rules within a chunked body, aiohttp closes the connection without waking whoever
reads the rest: the call would hold its slot until its timeout, an hour by default.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import aiohttp

LOOK_PERIOD_S = 1.0


class BodyWatch:
    """A context in which a response's body is read: it fails when its connection is gone before its end."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._was_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        # A short body has often come with its head.
        if not self._response.content.is_eof():
            self._look_later()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_PERIOD_S, self._look)

    def _look(self) -> None:
        content, connection = self._response.content, self._response.connection
        if connection is None or content.is_eof() or content.exception() is not None:
            return
        transport = connection.transport
        is_closed = transport is None or transport.is_closing()
        # Closed at one look only, its end may still be on the way to the reader.
        if is_closed and self._was_closed:
            content.set_exception(
                aiohttp.ClientResponseError(self._response.request_info, (), message="a malformed chunk")
            )
            return
        self._was_closed = is_closed
        self._look_later()
