"""The file that keeps the history over a restart: a SQLite table of ended programs."""

from __future__ import annotations

import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Counter

from autellix_backend.gateway.history.ended_program import EndedProgram
from autellix_backend.settings import SettingsError

MAX_PENDING = 1024
"""Programs that may wait for the disk; further ones are dropped and counted."""
BUSY_TIMEOUT_S = 5.0
SETTING = "observe.history_file"

_TABLE = "CREATE TABLE IF NOT EXISTS programs (number INTEGER PRIMARY KEY, ended_at_s REAL, record BLOB)"

logger = logging.getLogger(__name__)


class HistoryFile:
    """Writes ended programs in its own thread. Failures are counted and never stop a call."""

    def __init__(self, path: Path, max_programs: int, registry: CollectorRegistry) -> None:
        """Open the file, or create it.

        Args:
            path: The file.
            max_programs: How many programs it keeps, the most recent ones.
            registry: Gets the metric `autellix_history_programs`.

        Raises:
            SettingsError: if it cannot be opened or is not a SQLite database.
        """
        self._path = path
        self._max_programs = max_programs
        self._results = Counter(
            "autellix_history_programs",
            "Ended programs that were written to the history's file, or why they were not.",
            ("result",),
            registry=registry,
        )
        self._pending = 0
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="autellix-history")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = self._writer.submit(self._open).result()
        except (OSError, sqlite3.Error) as error:
            self._writer.shutdown()
            raise SettingsError(SETTING, f"{path}: {error}", "a SQLite file that can be written") from error

    def load(self) -> list[EndedProgram]:
        """Return the programs in the file, the first to end first; records of another form are skipped."""
        return self._writer.submit(self._load).result()

    def put(self, program: EndedProgram) -> None:
        """Write a program soon."""
        with self._lock:
            if self._pending >= MAX_PENDING:
                self._results.labels("dropped").inc()
                return
            self._pending += 1
        self._writer.submit(self._write, program)

    def close(self) -> None:
        """Write pending programs, and close the file."""
        self._writer.submit(self._database.close)
        self._writer.shutdown()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S)
        with database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_TABLE)
        return database

    def _load(self) -> list[EndedProgram]:
        rows = self._database.execute("SELECT record FROM programs ORDER BY number").fetchall()
        programs = []
        for (record,) in rows:
            try:
                programs.append(msgspec.json.decode(record, type=EndedProgram))
            except msgspec.DecodeError:
                self._results.labels("unreadable").inc()
        return programs

    def _write(self, program: EndedProgram) -> None:
        try:
            with self._database as database:
                values = (program.ended_at_s, msgspec.json.encode(program))
                cursor = database.execute("INSERT INTO programs (ended_at_s, record) VALUES (?, ?)", values)
                oldest = (cursor.lastrowid or 0) - self._max_programs
                database.execute("DELETE FROM programs WHERE number <= ?", (oldest,))
            self._results.labels("written").inc()
        except sqlite3.Error as error:
            logger.warning("the history's file %s could not be written: %s", self._path, error)
            self._results.labels("failed").inc()
        finally:
            with self._lock:
                self._pending -= 1
