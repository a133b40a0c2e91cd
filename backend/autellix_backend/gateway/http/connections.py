"""The open connections of a server, and how many it may have."""

from __future__ import annotations

import resource
from typing import Protocol

RESERVED_FILES = 64
"""File descriptors for everything but the connections of clients and to engines."""
MAX_CONNECTIONS = 65_536
"""Whatever the operating system allows: an idle connection takes about 10 KiB."""


class Evictable(Protocol):
    """A connection of a client, open or not yet."""

    def evict(self) -> None:
        """Close it, at a time when it has no request."""


class ConnectionTable:
    """The connections of one server, and those among them without a request, oldest first."""

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self._all: set[Evictable] = set()
        self._idle: dict[Evictable, None] = {}

    def add(self, connection: Evictable) -> bool:
        """Add a new connection, at the price of the oldest idle one; return False if there is none."""
        if len(self._all) >= self.max_connections:
            oldest = next(iter(self._idle), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.evict()
        self._all.add(connection)
        self._idle[connection] = None
        return True

    def remove(self, connection: Evictable) -> None:
        """Remove a connection; it may be gone already."""
        self._all.discard(connection)
        self._idle.pop(connection, None)

    def set_busy(self, connection: Evictable) -> None:
        """Note that a connection has a request."""
        self._idle.pop(connection, None)

    def set_idle(self, connection: Evictable) -> None:
        """Note that a connection waits for its next request."""
        if connection in self._all:
            self._idle[connection] = None


def connection_limit() -> int:
    """Raise the limit of open files as far as allowed; return how many connections of clients it allows.

    Half of the files are for connections to engines: each call may need one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + RESERVED_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, (files - RESERVED_FILES) // 2)
