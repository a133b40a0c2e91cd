"""Connections that are accepted and not yet open: whose they are shows in their first bytes."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from itertools import islice

FIRST_BYTES = 4096
"""So many are looked at; the key of a client's library is among the first 1,000."""
ROUND_NEWCOMERS = 32
"""So many are looked at, or given up, in a round of the event loop; one takes about 10 µs."""
SILENCE_S = 20.0
"""How long a connection may send nothing; browsers open such connections ahead."""


class Newcomer:
    """A connection that is accepted and not yet open."""

    __slots__ = ("address", "connection")

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection = connection
        self.address = address
        """Of the client."""

    @property
    def is_closed(self) -> bool:
        """Whether it was given up."""
        return self.connection.fileno() < 0

    def first_bytes(self) -> bytes | None:
        """Look at what the client has sent, which stays to be read.

        None means nothing yet, b"" that the client has left.
        """
        try:
            return self.connection.recv(FIRST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def evict(self) -> None:
        """Close it without a word."""
        self.connection.close()


class SilentNewcomers:
    """Newcomers that have sent nothing yet.

    They wait in an epoll of their own, which the event loop watches: a flood of them costs it one event in a
    round and no objects of asyncio's.
    """

    def __init__(self, on_bytes: Callable[[Newcomer, bytes], None]) -> None:
        """Begin to watch, in the running event loop.

        Args:
            on_bytes: Is called once for each newcomer, with its first bytes, or with b"" if it has left or
                has been silent for too long.
        """
        self._on_bytes = on_bytes
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._silent: dict[int, tuple[Newcomer, float]] = {}
        """By file descriptor, oldest first, with the end of the silence that is allowed, by the event loop's
        clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def add(self, newcomer: Newcomer) -> None:
        """Wait for a newcomer's first bytes; the caller may evict it meanwhile."""
        number = newcomer.connection.fileno()
        # An evicted one's number may be in use again, and the order is that of insertion.
        self._silent.pop(number, None)
        self._silent[number] = newcomer, self._loop.time() + SILENCE_S
        self._epoll.register(number, select.EPOLLIN)
        if self._timer is None:
            self._timer = self._loop.call_later(SILENCE_S, self._give_up)

    def close(self) -> None:
        """End the watch, and with it all newcomers that have still sent nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        for newcomer, _ in self._silent.values():
            self._on_bytes(newcomer, newcomer.first_bytes() or b"")
        self._silent.clear()

    def _look(self) -> None:
        for number, _ in self._epoll.poll(0, ROUND_NEWCOMERS):
            newcomer, _ = self._silent.get(number, (None, 0.0))
            if newcomer is None or newcomer.is_closed:
                # The epoll keeps a closed socket while a child, between its fork and exec, has it too.
                continue
            first = newcomer.first_bytes()
            if first is not None:
                del self._silent[number]
                self._epoll.unregister(number)
                self._on_bytes(newcomer, first)

    def _give_up(self) -> None:
        self._timer = None
        for number, (newcomer, end_s) in list(islice(self._silent.items(), ROUND_NEWCOMERS)):
            if not newcomer.is_closed and end_s > self._loop.time():
                break
            del self._silent[number]
            # Its socket leaves the epoll when it is closed.
            self._on_bytes(newcomer, b"")
        if self._silent:
            _, end_s = next(iter(self._silent.values()))
            self._timer = self._loop.call_at(end_s, self._give_up)
