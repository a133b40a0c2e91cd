"""Signals the end of a program to the processes started inside it, which may then serve other programs."""

from __future__ import annotations

import contextlib
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from typing import Any


class EndSignal:
    """One end of a pipe between the process that opened a program and one that it has started inside it.

    Closing the pipe would not do: a process that was forked meanwhile may hold a copy of the other end.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._poll: Any = None

    def send(self) -> None:
        """Signal that the program has ended."""
        with contextlib.suppress(OSError, ValueError):
            # The process itself may have ended.
            self.connection.send_bytes(b"end")
        self.connection.close()

    def has_come(self) -> bool:
        """Return whether the program has ended, or the process that opened it has."""
        if self._poll is None:
            import select

            if not hasattr(select, "poll"):
                return self.connection.poll()
            # Ten times as fast as the connection's own method.
            self._poll = select.poll()
            self._poll.register(self.connection.fileno(), select.POLLIN)
        return bool(self._poll.poll(0))


def make_pair(process: object) -> tuple[EndSignal, EndSignal]:
    """Return a signal for the program and one for a process; the first one closes with the process object."""
    from multiprocessing import Pipe

    reader, writer = Pipe(duplex=False)
    weakref.finalize(process, writer.close).atexit = False
    return EndSignal(writer), EndSignal(reader)
