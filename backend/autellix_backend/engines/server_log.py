"""The log of a server that we run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from autellix_backend.engines.base import StateFolderError

TAIL_LINES = 25
ERROR_LINE = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception)): \S.*")
WARNING = " WARNING "
"""Marks log lines of vLLM that may mention errors and are none."""
CONSEQUENCE = "Engine core initialization failed"
PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )*([A-Z]+ \d\d-\d\d \S+ )?(\[\S+:\d+\] ?)?")
"""What vLLM writes before a line: `(EngineCore pid=7) INFO 11-23 15:04:05 [core.py:58] `."""
OF_TRACEBACKS = re.compile(r"\s|Traceback|During handling of|The above exception|$")
"""Lines of a traceback, without the prefix, and empty ones."""


class ServerLog:
    """The file that a server's output goes to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rotate(self) -> None:
        """Keep the log of the previous server under another name.

        Raises:
            StateFolderError: if the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self.path.replace(self.path.with_suffix(".previous.log"))
        except OSError as error:
            raise StateFolderError(self.path.parent, error) from error

    def tail(self) -> str:
        """Return the last lines."""
        return "\n".join(self.lines()[-TAIL_LINES:])

    def cause(self) -> str:
        """Return the first error as the end of a sentence; vLLM buries it under its consequences."""
        for line in self.lines():
            if WARNING not in line and CONSEQUENCE not in line and (match := ERROR_LINE.search(line)):
                return f": {match.group()}"
        return f"; see {self.path}"

    def last_line(self) -> str | None:
        """Return the last line that is not of a traceback and does not repeat the cause; None without one."""
        cause = self.cause()
        for line in reversed(self.lines()):
            text = PREFIX.sub("", line)
            if OF_TRACEBACKS.match(text) or CONSEQUENCE in text or cause.endswith(text):
                continue
            return text
        return None

    def lines(self) -> list[str]:
        """Return all lines, none if there is no file."""
        with contextlib.suppress(OSError):
            return self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        return []
