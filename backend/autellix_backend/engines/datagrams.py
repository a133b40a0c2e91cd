"""Receiver of an engine's unix datagrams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

MAX_DATAGRAM_BYTES = 64 * 1024
RECEIVE_BUFFER_BYTES = 4 * 2**20
MAX_ROUND = 64
"""Datagrams read in a row; the rest is read in later turns of the event loop."""


class DatagramReceiver:
    """A bound datagram socket, read by the running event loop until close()."""

    def __init__(self, path: Path, on_datagram: Callable[[bytes], None]) -> None:
        self._path = path
        self._on_datagram = on_datagram
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Bind the socket, replacing one that a killed process left, and start reading."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        receiver.bind(str(self._path))
        # uvloop's datagram support lacks unix sockets; readers work in every event loop.
        asyncio.get_running_loop().add_reader(receiver, self._read)
        self._socket = receiver

    def close(self) -> None:
        """Stop reading and remove the socket."""
        receiver, self._socket = self._socket, None
        if receiver is not None:
            asyncio.get_running_loop().remove_reader(receiver)
            receiver.close()
            self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_ROUND):
                self._on_datagram(self._socket.recv(MAX_DATAGRAM_BYTES))
