"""The log of a server that we run."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

TAIL_LINES = 25
TAIL_BYTES = 64 * 2**10
ERROR_LINE = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception)): \S.*")
WARNING = " WARNING "
"""Marks log lines of vLLM that may mention errors and are none."""
CONSEQUENCE = "Engine core initialization failed"


class ServerLog:
    """The file that a server's output goes to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rotate(self) -> None:
        """Make room for a new log and keep that of the server before."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Another gateway of the same user may rotate it at the same moment.
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._path.with_suffix(".previous.log"))

    def tail(self) -> str:
        """Return the last lines."""
        try:
            with self._path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"(cannot read the log: {error})"
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def cause(self) -> str:
        """Return the first error as the end of a sentence; vLLM buries it under its consequences."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        lines = (line for line in text.splitlines() if WARNING not in line and CONSEQUENCE not in line)
        found = [match.group() for line in lines if (match := ERROR_LINE.search(line))]
        return f": {found[0]}" if found else f"; see {self._path}"
