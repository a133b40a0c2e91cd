"""Runs steps on one daemon thread, off the user's path."""

from __future__ import annotations

import contextlib
import queue
import threading

from autellix._faults import safely
from autellix._propagation import Suppressed
from autellix._sessions.exchange import close_connections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]


class ControlThread:
    """A thread that starts with the first step; when `timeout_s` has elapsed it runs `on_timeout` first."""

    def __init__(self, timeout_s: Callable[[], float | None], on_timeout: Step) -> None:
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._inbox: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def post(self, step: Step) -> None:
        """Queue a step. Never blocks."""
        self._inbox.put(step)
        self.ensure_started()

    def ensure_started(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, args=(self._inbox,), name="autellix-control", daemon=True)
        self._thread = thread
        with Suppressed():
            try:
                thread.start()
            except RuntimeError:
                # From Python 3.12 an exiting interpreter starts no threads; the session ends by itself.
                self._thread = None

    def stop(self, last_step: Step | None = None) -> threading.Thread | None:
        """Let the thread finish after the queued steps and a last one; return it if it runs."""
        thread, self._thread = self._thread, None
        # A successor gets an inbox of its own, or it would take this thread's last steps.
        inbox, self._inbox = self._inbox, queue.SimpleQueue()
        if thread is not None:
            if last_step is not None:
                inbox.put(last_step)
            inbox.put(None)
        return thread

    def _run(self, inbox: queue.SimpleQueue[Step | None]) -> None:
        try:
            while self._run_one(inbox):
                pass
        finally:
            safely(close_connections)

    def _run_one(self, inbox: queue.SimpleQueue[Step | None]) -> bool:
        step: Step | None = _nothing
        with contextlib.suppress(queue.Empty):
            step = inbox.get(timeout=self._timeout_s())
        if step is None:
            return False
        # However many steps wait, what is due goes first.
        if self._timeout_s() == 0:
            safely(self._on_timeout)
        safely(step)
        return True


def _nothing() -> None:
    pass
