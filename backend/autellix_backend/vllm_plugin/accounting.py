"""Sends one datagram per finished call; it never waits, so the engine's loop never does."""

from __future__ import annotations

import socket

__all__ = ["AccountSender"]


class AccountSender:
    """A non-blocking sender to a unix datagram socket that counts what it had to drop."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self.dropped_records = 0
        self.sent_records = 0

    @property
    def is_enabled(self) -> bool:
        """Whether there is an address to send to."""
        return self._path is not None

    def send(self, message: bytes) -> bool:
        """Send a message if the receiver is there and has room; else drop and count it."""
        if self._path is None:
            return False
        try:
            self._open().sendto(message, self._path)
        except OSError:
            # Full, absent or too long: an account is worth less than a stalled engine.
            self.dropped_records += 1
            return False
        self.sent_records += 1
        return True

    def close(self) -> None:
        """Close the socket; a later send opens it anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        return self._socket
