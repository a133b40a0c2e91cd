"""Sends one datagram per finished call, and snapshots; the engine's loop never waits for it.

A unix datagram socket holds few messages (ten, by Linux's default), and a full batch may finish in one step.
What does not fit at once is sent by a thread of its own as soon as the receiver has read; only beyond
MAX_PENDING messages is anything dropped, and counted.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

MAX_PENDING = 65_536


class ReportSender:
    """A sender to a unix datagram socket that delivers late rather than never, and counts what it dropped."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._pending: deque[bytes] = deque()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped_records = 0

    @property
    def is_enabled(self) -> bool:
        """Whether there is an address to send to."""
        return self._path is not None

    def send(self, message: bytes) -> None:
        """Send a message now, or soon if the receiver has no room; drop it if there is no receiver."""
        if self._path is None:
            return
        if self._pending:
            self._postpone(message)
            return
        try:
            self._open().sendto(message, socket.MSG_DONTWAIT, self._path)
        except BlockingIOError:
            self._postpone(message)
        except OSError:
            # Absent or too long: losing a report is better than stalling the engine.
            self.dropped_records += 1

    def offer(self, message: bytes) -> None:
        """Send a message now or not at all: for one that the next will replace."""
        if self._path is not None and not self._pending:
            with contextlib.suppress(OSError):
                self._open().sendto(message, socket.MSG_DONTWAIT, self._path)

    def close(self) -> None:
        """Close the socket and drop what is pending; a later send opens another."""
        with contextlib.suppress(IndexError):
            while True:
                self._pending.popleft()
                self.dropped_records += 1
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _postpone(self, message: bytes) -> None:
        if len(self._pending) >= MAX_PENDING:
            self.dropped_records += 1
            return
        self._pending.append(message)
        self._wakeup.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, name="autellix-reports", daemon=True)
            self._thread.start()

    def _deliver(self) -> None:
        while True:
            self._wakeup.wait()
            self._wakeup.clear()
            while self._pending:
                self._deliver_one(self._pending[0])

    def _deliver_one(self, message: bytes) -> None:
        """Send the first pending message, which stays in its place meanwhile, so that none overtakes it."""
        assert self._path is not None
        try:
            # Waits here, off the engine's loop, until the receiver has read.
            self._open().sendto(message, self._path)
        except OSError:
            self.dropped_records += 1
        with contextlib.suppress(IndexError):
            self._pending.popleft()

    def _open(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        return self._socket
