"""The log of settled calls, one JSON line each, which a thread writes: a slow disk delays no call."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import queue
import sys
import threading
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

    Each line opens the file, so that it may be rotated at any time.
    """

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        """Check the path.

        Raises:
            SettingsError: if it cannot be written.
        """
        check_writable(path)
        self._lines = Counter(
            "autellix_call_log_lines",
            "Lines of the call log: written, dropped or failed.",
            ("result",),
            registry=registry,
        )
        self._path = path
        self._pending = queue.SimpleQueue[SettledCall | None]()
        self._writer = threading.Thread(target=self._write, name="autellix-call-log", daemon=True)
        self.problem: str | None = None
        """Why the last line could not be written, None if it was."""

    def open(self) -> None:
        """Start writing."""
        self._writer.start()

    def put(self, call: SettledCall) -> None:
        """Queue a call; never blocks."""
        if self._pending.qsize() >= MAX_PENDING:
            self._lines.labels("dropped").inc()
        else:
            self._pending.put(call)

    def close(self, timeout_s: float | None = None) -> None:
        """Write pending calls and end the thread; blocks, for at most `timeout_s`."""
        self._pending.put(None)
        self._writer.join(timeout_s)

    def _write(self) -> None:
        while (call := self._pending.get()) is not None:
            try:
                self._append(f"{line_of(call)}\n")
                self._lines.labels("written").inc()
                self.problem = None
            except Exception as error:
                # The boundary of a thread: a failure must not stop the writing of later lines.
                self._lines.labels("failed").inc()
                if self.problem is None:
                    logger.exception("observe.call_log: cannot write (%s); serving goes on", error)
                self.problem = getattr(error, "strerror", None) or repr(error)

    def _append(self, line: str) -> None:
        if self._path == STANDARD_ERROR:
            sys.stderr.write(line)
            sys.stderr.flush()
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)


def check_writable(path: Path | None) -> None:
    """Check that the call log can be appended to this path, without creating the file.

    Raises:
        SettingsError: if it cannot.
    """
    if path is None or path == STANDARD_ERROR:
        return
    try:
        os.close(os.open(path, os.O_WRONLY))
        return
    except FileNotFoundError:
        if not path.parent.is_dir():
            problem = f"there is no folder {path.parent}"
        elif not os.access(path.parent, os.W_OK):
            problem = os.strerror(errno.EACCES)
        else:
            return
    except OSError as error:
        problem = os.strerror(error.errno or 0)
    expected = "a file that can be written, or -"
    raise SettingsError("observe.call_log", f"cannot write {path} ({problem})", expected)


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
        "thread_name": start.thread_name,
        "parents": start.parents,
        "tenant": call.tenant,
        "identity_source": call.identity_source,
        "engine": call.engine,
        "operation": call.operation,
        "model": call.model,
        "is_streaming": call.is_streaming,
        "outcome": call.outcome,
        "status": call.status,
        "reason": call.reason,
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
        "request_id": call.request_id,
    }
    rounded = {
        name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in line.items()
    }
    return json.dumps(rounded, separators=(",", ":"))
