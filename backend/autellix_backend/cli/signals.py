"""Signals to a running command, and the exit codes of one that they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator

EXIT_INTERRUPTED = 130
EXIT_FAILURE = 1


@contextlib.contextmanager
def on_signals(action: Callable[[], object], *numbers: int) -> Generator[None, None, None]:
    """Call an action at these signals while inside."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
