"""`autellix serve` with a short lease, that prints the number of its event loop's tasks on SIGUSR1."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from autellix_backend.cli.main import main
from autellix_backend.stores import factory

LEASE_S = 3.0
"""Drills would only wait longer for a longer one."""


def tell(*_: object) -> None:
    os.write(sys.stdout.fileno(), f"tasks: {len(asyncio.all_tasks())}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    factory.LEASE_S = LEASE_S
    sys.exit(main())
