"""The log of settled calls, one JSON line each, which a thread writes: a slow disk delays no call."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from logging.handlers import QueueListener, WatchedFileHandler
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.settings import SettingsError

MAX_PENDING = 10_000
"""Calls that may wait for the disk; further ones are dropped."""
STANDARD_ERROR = Path("-")

# Microseconds.
_DIGITS = 6

logger = logging.getLogger(__name__)


class CallLog:
    """Appends settled calls to a file, or to standard error for the path `-`.

    The file may be rotated at any time.
    """

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        """Create the file unless it is there.

        Raises:
            SettingsError: if it cannot be written.
        """
        self._lines = Counter(
            "autellix_call_log_lines",
            "Lines of the call log: written, dropped or failed.",
            ("result",),
            registry=registry,
        )
        self._output = _output(path)
        self._output.setFormatter(_JsonLine())
        self._pending = queue.SimpleQueue[logging.LogRecord]()
        self._listener = _Writer(self._pending, self._output, self._lines)

    def open(self) -> None:
        """Start writing."""
        self._listener.start()

    def put(self, call: SettledCall) -> None:
        """Queue a call; never blocks."""
        if self._pending.qsize() >= MAX_PENDING:
            self._lines.labels("dropped").inc()
        else:
            self._pending.put(logging.makeLogRecord({"msg": call}))

    def close(self, timeout_s: float | None = None) -> None:
        """Write pending calls and end the thread; blocks, for at most `timeout_s`."""
        end = threading.Thread(target=self._end, name="autellix-call-log-end", daemon=True)
        end.start()
        end.join(timeout_s)

    def _end(self) -> None:
        self._listener.stop()
        with contextlib.suppress(OSError):
            self._output.close()


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        assert isinstance(record.msg, SettledCall)
        return line_of(record.msg)


class _Raising(logging.Handler):
    """Lets a failure reach the writer, which counts it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's names
        raise  # noqa: PLE0704 - logging calls this while it handles the error


class _File(_Raising, WatchedFileHandler):
    pass


class _StandardError(_Raising, logging.StreamHandler):  # type: ignore[type-arg]
    pass


class _Writer(QueueListener):
    """Writes calls in its own thread and counts the results."""

    def __init__(
        self, pending: queue.SimpleQueue[logging.LogRecord], output: logging.Handler, lines: Counter
    ) -> None:
        super().__init__(pending, output)
        self._lines = lines
        self._has_complained = False

    def handle(self, record: logging.LogRecord) -> None:
        try:
            super().handle(record)
            self._lines.labels("written").inc()
        except Exception as error:
            # The boundary of a thread: a failure must not stop the writing of later lines.
            self._lines.labels("failed").inc()
            if not self._has_complained:
                self._has_complained = True
                logger.exception("observe.call_log: cannot write (%s); serving goes on", error)


def check_writable(path: Path | None) -> None:
    """Check that the call log can be appended to this path, without creating the file.

    Raises:
        SettingsError: if it cannot.
    """
    if path is None or path == STANDARD_ERROR:
        return
    with _explained(path):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except FileNotFoundError:
            folder = path.parent
            if not folder.is_dir():
                raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder}") from None
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _output(path: Path) -> logging.Handler:
    if path == STANDARD_ERROR:
        return _StandardError(sys.stderr)
    with _explained(path):
        path.open("ab").close()
    return _File(path, encoding="utf-8", delay=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the file system into one of the setting."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            "observe.call_log", f"cannot write {path} ({error.strerror})", "a file that can be written, or -"
        ) from error


def line_of(call: SettledCall) -> str:
    """Return a call as one line of JSON, its time first."""
    start, receipt, usage = call.start, call.receipt, call.answer_usage
    ended_at = datetime.datetime.fromtimestamp(call.ended_at_s, datetime.UTC)
    line = {
        "time": ended_at.isoformat(timespec="microseconds"),
        "event": "call",
        "call_id": start.call_id,
        "program_id": receipt.program_id,
        "program_name": start.name,
        "session_id": call.session_id,
        "thread_id": start.thread_id,
        "parents": start.parents,
        "tenant": call.tenant,
        "identity_source": call.identity_source,
        "engine": call.engine,
        "operation": call.operation,
        "model": call.model,
        "is_streaming": call.is_streaming,
        "outcome": call.outcome,
        "duration_s": call.duration_s,
        "first_token_s": call.first_token_s,
        "wait_s": receipt.wait_s,
        "service_s": receipt.service_s,
        "inherited_service_s": call.inherited_service_s,
        "level": receipt.level,
        "preemptions": receipt.preemptions,
        "demotions": receipt.demotions,
        "promotions": receipt.promotions,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "is_estimated": receipt.estimated,
        "is_final": call.is_final,
        "tools": [{"name": name, "duration_s": duration_s} for name, duration_s in start.interceptions],
        "trace_id": call.trace_id,
    }
    rounded = {
        name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in line.items()
    }
    return json.dumps(rounded, separators=(",", ":"))
