"""Connections as they come: many are accepted in a round of the event loop, a few opened, clients in turn.

uvloop's own servers accept one connection in a round, first come first served, and a round is as long as all
that is ready takes: a flood of connections delays everyone's new ones by as many rounds. And if many are
opened in a round, what they bring delays every step of everyone's requests.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable

MAX_WAITING = 1024
"""Connections that are accepted, which takes about 10 µs, and not yet open."""
SHARED_MAX_WAITING = 4
"""The same where several processes accept at one socket: none may take all that are opened at once."""
ROUND_CONNECTIONS = 2
"""Opened before other work gets its turn; each takes about 40 µs, and what it brings more."""
OPEN_S = 0.25
"""More are opened in a round where those that wait would else wait longer than this: rounds may be long."""
SEND_BUFFER_BYTES = 256 * 1024
"""About half of what the system keeps of an answer that a client does not read; by itself it keeps 4 MiB."""
RETRY_S = 1.0
"""How long none is accepted when the process or the machine has no file descriptor or memory left."""
_LEFT = getattr(select, "POLLRDHUP", select.POLLHUP)
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

logger = logging.getLogger(__name__)


class Acceptor:
    """Accepts at one listening socket, which the caller closes; stands in for an `asyncio.Server`."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        is_shared: bool = False,
    ) -> None:
        """Begin to accept, in the running event loop.

        Args:
            listener: The socket.
            make_protocol: Returns the protocol of one connection.
            is_shared: Whether other processes accept at it too.
        """
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sockets = (listener,)
        self._listener = listener
        self._make_protocol = make_protocol
        self._max_waiting = SHARED_MAX_WAITING if is_shared else MAX_WAITING
        self._waiting: dict[str, deque[socket.socket]] = {}
        """Connections to open by their client's address: those of one in the order in which they came."""
        self._waiting_count = 0
        self._opened_s = 0.0
        """When the last of them were opened."""
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more; connections stay as they are, and those that were accepted are opened."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        while self._waiting:
            self._open_next()

    async def wait_closed(self) -> None:
        """Wait until each accepted connection has its protocol."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        was_waiting = self._waiting_count > 0
        while self._waiting_count < self._max_waiting:
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    # The client has left already.
                    continue
                logger.warning("no connection is accepted for %g s: %s", RETRY_S, error)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(RETRY_S, self._resume)
                break
            self._waiting.setdefault(address[0], deque()).append(connection)
            self._waiting_count += 1
        if self._waiting_count and not was_waiting:
            self._opened_s = time.perf_counter()
            self._open_some()

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)

    def _open_some(self) -> None:
        now_s = time.perf_counter()
        round_s, self._opened_s = now_s - self._opened_s, now_s
        left = max(ROUND_CONNECTIONS, int(self._waiting_count * round_s / OPEN_S))
        while left and self._waiting:
            left -= self._open_next()
        if self._waiting:
            self._loop.call_soon(self._open_some)

    def _open_next(self) -> bool:
        """Open the connection whose turn it is; return False if its client has left already."""
        address = next(iter(self._waiting))
        connections = self._waiting.pop(address)
        connection = connections.popleft()
        self._waiting_count -= 1
        if connections:
            # Behind those of all others.
            self._waiting[address] = connections
        if _has_left(connection):
            connection.close()
            return False
        task = self._loop.create_task(self._connect(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    async def _connect(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            # The client has left in between.
            connection.close()


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client has closed its end; its request would be dropped when it is read."""
    poll = select.poll()
    poll.register(connection, _LEFT)
    return bool(poll.poll(0))
