"""Runs steps on one daemon thread, off the user's path."""

from __future__ import annotations

import contextlib
import queue
import threading

from autellix._faults import safely
from autellix._propagation import Suppressed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

MAX_STEPS = 4096
"""That wait; further ones are dropped."""


class ControlThread:
    """A thread that runs steps; `pause` does what is due and returns the seconds until the next look."""

    def __init__(self, pause: Callable[[], float | None], on_stop: Step) -> None:
        self._pause = pause
        self._on_stop = on_stop
        self._inbox: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()

    def post(self, step: Step) -> None:
        """Queue a step for the thread, if it runs.

        Never blocks, and starts no thread: a finalizer may post anywhere, and a start takes locks.
        """
        if self._inbox.qsize() < MAX_STEPS:
            self._inbox.put(step)

    def ensure_started(self) -> None:
        """Start the thread unless it runs, or is being started."""
        if self._thread is not None or not self._start.acquire(blocking=False):
            return
        try:
            # An exiting interpreter starts no threads, nor may a sub-interpreter: the session ends by itself.
            with Suppressed(), contextlib.suppress(RuntimeError):
                if self._thread is None:
                    inbox, name = self._inbox, "autellix-control"
                    thread = threading.Thread(target=self._run, args=(inbox,), name=name, daemon=True)
                    thread.start()
                    self._thread = thread
        finally:
            self._start.release()

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
        while True:
            with contextlib.suppress(queue.Empty):
                # However many steps wait, what is due goes first.
                step = inbox.get(timeout=self._pause())
                if step is None:
                    break
                safely(step)
        safely(self._on_stop)
