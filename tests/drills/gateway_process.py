"""`autellix serve` with a short lease and short sessions, which prints its number of tasks on SIGUSR1."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from unittest.mock import patch

from autellix_backend.cli.main import main
from autellix_backend.gateway import wiring
from autellix_backend.stores import factory

LEASE_S = 3.0
"""Drills would only wait longer for a longer one."""
SESSION_TTL_S = 10.0
"""Of a session whose end the table has not seen; clients send a heartbeat each second."""


def tell(*_: object) -> None:
    # A signal may come between a line of the gateway's and its end.
    os.write(sys.stdout.fileno(), f"\ntasks: {len(asyncio.all_tasks())}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    factory.LEASE_S = LEASE_S
    with patch.object(wiring, "SESSION_TTL_S", SESSION_TTL_S):
        sys.exit(main())
