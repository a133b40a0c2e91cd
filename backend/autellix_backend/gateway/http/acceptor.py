"""Accepting connections: many in a round of the event loop, of which a few are opened, the clients in turn.

uvloop's own servers accept one connection in a round, in the order of arrival: a flood of connections delays
everyone's new ones by a round for each of its own. Here a connection is opened when its first bytes are
there: the key among them says whose turn it takes, so that a flood delays no other tenant's, even behind one
proxy.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import time
from collections.abc import Callable
from functools import partial

from autellix_backend.gateway.http.connections import ConnectionTable
from autellix_backend.gateway.http.newcomers import Newcomer, SilentNewcomers
from autellix_backend.gateway.http.rounds import FOLLOW_UP_S, Rounds

ROUND_CONNECTIONS = 32
ACCEPT_S = 0.0005
"""A round accepts so many, or for so long; one takes 10 to 100 µs."""
SHARED_ROUND_CONNECTIONS = 8
"""The same where several processes accept at one socket: none may take all that are opened at once."""
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
        make_protocol: Callable[[str], asyncio.BaseProtocol],
        rounds: Rounds,
        table: ConnectionTable,
        find_owner: Callable[[bytes], str],
        *,
        is_shared: bool = False,
    ) -> None:
        """Begin to accept, in the running event loop.

        Args:
            listener: The socket.
            make_protocol: Returns the protocol of one connection, given its owner.
            rounds: Bounds the connections that are opened in a round; their owners take turns.
            table: Bounds all connections, also those that are not open yet.
            find_owner: Returns the tenant whose key a connection's first bytes carry, "" if none; then the
                client's address is the owner.
            is_shared: Whether other processes accept at it too.
        """
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sockets = (listener,)
        self._listener = listener
        self._make_protocol = make_protocol
        self._rounds = rounds
        self._table = table
        self._find_owner = find_owner
        self._round_connections = SHARED_ROUND_CONNECTIONS if is_shared else ROUND_CONNECTIONS
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._silent = SilentNewcomers(self._await_turn)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more; connections stay as they are, and those that have sent something are opened."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._silent.close()
        self._rounds.flush()

    async def wait_closed(self) -> None:
        """Wait until each accepted connection has its protocol."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        end_s = time.perf_counter() + ACCEPT_S
        for _ in range(self._round_connections):
            if time.perf_counter() > end_s:
                break
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
            self._receive(Newcomer(connection, address[0]))

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept)

    def _receive(self, newcomer: Newcomer) -> None:
        if not self._table.add(newcomer):
            # No other makes room: its protocol refuses it, with an error that its client understands.
            self._rounds.run(newcomer.address, partial(self._open, newcomer, newcomer.address))
        elif (first := newcomer.first_bytes()) is None:
            self._silent.add(newcomer)
        else:
            self._await_turn(newcomer, first)

    def _await_turn(self, newcomer: Newcomer, first: bytes) -> None:
        if first:
            owner = self._find_owner(first) or newcomer.address
            self._rounds.run(owner, partial(self._open, newcomer, owner))
        else:
            self._drop(newcomer)

    def _open(self, newcomer: Newcomer, owner: str) -> None:
        if newcomer.is_closed:
            return
        if _has_left(newcomer.connection):
            self._drop(newcomer)
            return
        self._table.remove(newcomer)
        self._rounds.charge(FOLLOW_UP_S)
        task = self._loop.create_task(self._connect(newcomer.connection, owner))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connection: socket.socket, owner: str) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(partial(self._make_protocol, owner), connection)
        except OSError:
            # The client has left in between.
            connection.close()

    def _drop(self, newcomer: Newcomer) -> None:
        self._table.remove(newcomer)
        newcomer.evict()


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client has closed its end; its request would be dropped when it is read."""
    poll = select.poll()
    poll.register(connection, _LEFT)
    return bool(poll.poll(0))
