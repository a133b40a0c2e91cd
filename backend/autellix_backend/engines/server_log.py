"""The log of a server that we run."""

from __future__ import annotations

import contextlib
import fcntl
import re
from itertools import count
from pathlib import Path
from typing import BinaryIO

TAIL_LINES = 25
ERROR_LINE = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception)): \S.*")
WARNING = " WARNING "
"""Marks log lines of vLLM that may mention errors and are none."""
CONSEQUENCE = "Engine core initialization failed"


class ServerLog:
    """The file that a server's output goes to.

    Gateways of one user share a folder of logs. The first one has `replica-0.log` while it runs, the next
    one `replica-0.2.log`.
    """

    def __init__(self, path: Path) -> None:
        self._first_path = self.path = path
        self._lock: BinaryIO | None = None

    def claim(self) -> Path:
        """Keep the log from other gateways until release(), and return its path, which may be another now."""
        if self._lock is None:
            self._first_path.parent.mkdir(parents=True, exist_ok=True)
            candidates = (self._first_path.with_suffix(f".{number}.log") for number in count(2))
            self.path = self._first_path
            while (lock := _lock(self.path.with_suffix(".lock"))) is None:
                self.path = next(candidates)
            self._lock = lock
        return self.path

    def release(self) -> None:
        """Release the log; without a claim this does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def rotate(self) -> None:
        """Claim the log, and keep that of the previous server under another name."""
        with contextlib.suppress(FileNotFoundError):
            self.claim().replace(self.path.with_suffix(".previous.log"))

    def tail(self) -> str:
        """Return the last lines."""
        return "\n".join(self._lines()[-TAIL_LINES:])

    def cause(self) -> str:
        """Return the first error as the end of a sentence; vLLM buries it under its consequences."""
        for line in self._lines():
            if WARNING not in line and CONSEQUENCE not in line and (match := ERROR_LINE.search(line)):
                return f": {match.group()}"
        return f"; see {self.path}"

    def _lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        return []


def _lock(path: Path) -> BinaryIO | None:
    """Lock a file until it is closed; return None if another gateway has locked it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        # A file system without locks: the log may be shared, and the engine starts all the same.
        return file
    return file
