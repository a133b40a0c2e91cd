"""`autellix serve` that prints the number of its event loop's tasks on SIGUSR1."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from autellix_backend.cli.main import main


def tell(*_: object) -> None:
    os.write(sys.stdout.fileno(), f"tasks: {len(asyncio.all_tasks())}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(main())
