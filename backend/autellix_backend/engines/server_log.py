"""The log of a server that we run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

TAIL_LINES = 25
ERROR_LINE = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception)): \S.*")
WARNING = " WARNING "
"""Marks log lines of vLLM that may mention errors and are none."""
CONSEQUENCE = "Engine core initialization failed"


class ServerLog:
    """The file that a server's output goes to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rotate(self) -> None:
        """Keep the log of the previous server under another name."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(self.path.with_suffix(".previous.log"))

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
