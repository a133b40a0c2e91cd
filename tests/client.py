"""The client switched on for a while; importing this leaves the process as it was."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tests.waiting import PATIENCE_S

import autellix
from autellix._programs.registry import programs
from autellix._sessions.backends import backends

# Tests of other packages share this process: they get it as it was.
autellix.uninstrument()
# That of pytest: most tests expect the calls outside of programs to have none.
programs.implicit.name = None


@contextlib.contextmanager
def switched_on() -> Iterator[None]:
    """Switch the client on, and off again, with its control thread."""
    before = set(threading.enumerate())
    autellix.configure()
    autellix.instrument()
    try:
        yield
    finally:
        autellix.uninstrument()
        for thread in set(threading.enumerate()) - before:
            if thread.name == "autellix-control":
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
        backends.configure(())
