"""Ports for servers that must know theirs before they start."""

from __future__ import annotations

import contextlib
import random
import socket

LOWEST, HIGHEST = 20_000, 32_000
"""Below the ports that the kernel gives to connections: one of those could take a port before its server."""


def free_port(companion_offset: int = 0) -> int:
    """Return a port that nothing listens on; nor at the one above it by the offset, if there is one."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(LOWEST, HIGHEST)
        with contextlib.suppress(OSError), socket.socket() as own, socket.socket() as companion:
            own.bind(("127.0.0.1", port))
            if companion_offset:
                companion.bind(("127.0.0.1", port + companion_offset))
            return port
