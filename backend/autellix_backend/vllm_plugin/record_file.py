"""The file of an engine's record: compressed, of bounded size, and never in the engine's way."""

from __future__ import annotations

import gzip
import logging
from contextlib import suppress
from pathlib import Path

# Below vLLM's own logger, whose handler shows it.
logger = logging.getLogger("vllm.autellix")

MAX_BYTES = 64 * 2**20
"""The size at which a record ends: it has to have its beginning."""
FLUSHED_LINES = 256
"""A process that is killed loses fewer lines than these."""


class RecordFile:
    """Writes lines to a new file until it is full, or closed, or cannot be written."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Make the file and its folder; if that fails, log it, and write nothing."""
        self.path = path
        self._max_bytes = max_bytes
        self._lines = 0
        self._file: gzip.GzipFile | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = gzip.GzipFile(path, "xb", compresslevel=1)
        except OSError as error:
            logger.warning("Autellix: the scheduler's events are not recorded: %s", error)
        else:
            logger.info("Autellix: the scheduler's events are recorded in %s", path)

    def write(self, line: bytes) -> None:
        """Write a line; nothing once the file has been closed."""
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._lines += 1
            if self._lines % FLUSHED_LINES == 0:
                self._file.flush()
                if self.path.stat().st_size >= self._max_bytes:
                    logger.info("Autellix: the record %s is full", self.path)
                    self.close()
        except OSError as error:
            logger.warning("Autellix: the record %s ends here: %s", self.path, error)
            self.close()

    def close(self) -> None:
        """End the file; it may have ended."""
        file, self._file = self._file, None
        if file is not None:
            # A full disk takes no end of a file either; what it has can be read all the same.
            with suppress(OSError):
                file.close()
