"""Connections as they come: many are accepted in one round of the event loop.

uvloop's own servers accept one connection in a round, and a round is as long as all that is ready takes. A
flood of connections that each bring a request then delays everyone's new connections by as many rounds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

ROUND_CONNECTIONS = 16
"""Accepted before other work gets its turn; each takes about 40 µs."""
SHARED_ROUND_CONNECTIONS = 4
"""The same where several processes accept at one socket: none may take all that are opened at once."""
SEND_BUFFER_BYTES = 256 * 1024
"""About half of what the system keeps of an answer that a client does not read; by itself it keeps 4 MiB."""
RETRY_S = 1.0
"""How long none is accepted when the process or the machine has no file descriptor or memory left."""
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
        self._most = SHARED_ROUND_CONNECTIONS if is_shared else ROUND_CONNECTIONS
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more; connections stay as they are."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Wait until each accepted connection has its protocol."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(self._most):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    # The client has left already.
                    continue
                logger.warning("no connection is accepted for %g s: %s", RETRY_S, error)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(RETRY_S, self._resume)
                return
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            # The client has left in between.
            connection.close()
