"""Lines that a separate thread appends to a file, so that a slow disk delays no call."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from prometheus_client import Counter

from autellix_backend.settings import SettingsError

STANDARD_ERROR = Path("-")

T = TypeVar("T")

logger = logging.getLogger(__name__)


class LineWriter(Generic[T]):
    """Appends items as lines to a file, or to standard error for the path `-`.

    The file is reopened for each line, so that it may be rotated at any time.
    """

    def __init__(
        self, path: Path, render: Callable[[T], str], results: Counter, *, setting: str, max_pending: int
    ) -> None:
        """Create the file unless it is there.

        Args:
            path: The file.
            render: Returns the line of an item; runs in the writer's thread.
            results: Counts lines by their result: `written`, `dropped` or `failed`.
            setting: The setting of the path, for messages.
            max_pending: How many items may wait for the disk; further ones are dropped.

        Raises:
            SettingsError: if it cannot be written.
        """
        with _explained(path, setting):
            append_text(path, "")
        self._path = path
        self._render = render
        self._results = results
        self._setting = setting
        self._pending: queue.Queue[T | None] = queue.Queue(max_pending)
        self._has_complained = False
        self._thread = threading.Thread(target=self._run, name=f"autellix-{setting}", daemon=True)

    def open(self) -> None:
        """Start writing."""
        self._thread.start()

    def put(self, item: T) -> None:
        """Queue an item."""
        try:
            self._pending.put_nowait(item)
        except queue.Full:
            self._results.labels("dropped").inc()

    def close(self, timeout_s: float | None = None) -> None:
        """Write pending items and end the thread; blocks, for at most `timeout_s`."""
        with contextlib.suppress(queue.Full):
            self._pending.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._pending.get()) is not None:
            try:
                append_text(self._path, self._render(item))
                self._results.labels("written").inc()
            except Exception as error:
                # The boundary of a thread: a failure must not stop the writing of later lines.
                self._results.labels("failed").inc()
                if not self._has_complained:
                    self._has_complained = True
                    logger.exception(
                        "%s: cannot write %s (%s); serving goes on", self._setting, self._path, error
                    )


def append_text(path: Path, text: str) -> None:
    """Append all of a text or nothing.

    Raises:
        OSError: if it cannot be written; a part that was written is removed.
    """
    if path == STANDARD_ERROR:
        sys.stderr.write(text)
        sys.stderr.flush()
        return
    data = text.encode()
    with path.open("ab", buffering=0) as file:
        size_bytes = file.seek(0, 2)
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "no space left on device")
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size_bytes)
            raise


def check_writable(path: Path | None, setting: str) -> None:
    """Check that lines can be appended to the path of a setting, without creating the file.

    Raises:
        SettingsError: if they cannot.
    """
    if path is None or path == STANDARD_ERROR:
        return
    with _explained(path, setting):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except FileNotFoundError:
            folder = path.parent
            if not folder.is_dir():
                raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder}") from None
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


@contextlib.contextmanager
def _explained(path: Path, setting: str) -> Iterator[None]:
    """Turn an error of the file system into one of the setting."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            setting, f"cannot write {path} ({error.strerror})", "a file that can be written, or -"
        ) from error
