"""A log of settled calls, one JSON line each, written by its own thread: a slow disk delays no call."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import queue
import sys
import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.settings import SettingsError

MAX_PENDING = 10_000
"""Lines that may wait for the disk; further ones are dropped and counted."""
CLOSE_TIMEOUT_S = 5.0
STANDARD_ERROR = Path("-")

# Microseconds.
_DIGITS = 6

logger = logging.getLogger(__name__)


class CallLog:
    """Appends settled calls to a file, or to standard error for the path `-`.

    The file is reopened for each batch of lines, so that it may be rotated at any time.
    """

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        """Check that the file can be written.

        Raises:
            SettingsError: if it cannot.
        """
        check_writable(path)
        self._path = path
        self._lines = Counter(
            "autellix_call_log_lines",
            "Lines of the call log: written, dropped or failed.",
            ("result",),
            registry=registry,
        )
        self._pending: queue.Queue[SettledCall | None] = queue.Queue(MAX_PENDING)
        self._has_complained = False
        self._thread = threading.Thread(target=self._run, name="autellix-call-log", daemon=True)

    def open(self) -> None:
        """Start writing."""
        self._thread.start()

    def take(self, call: SettledCall) -> None:
        """Queue a call for the log."""
        try:
            self._pending.put_nowait(call)
        except queue.Full:
            self._lines.labels("dropped").inc()

    def close(self) -> None:
        """Write what is pending and end the thread, within a bound; blocks meanwhile."""
        with contextlib.suppress(queue.Full):
            self._pending.put(None, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            batch = [self._pending.get()]
            while not self._pending.empty():
                batch.append(self._pending.get())
            is_over = None in batch
            self._write([call for call in batch if call is not None])

    def _write(self, batch: list[SettledCall]) -> None:
        try:
            text = "".join(line_of(call) for call in batch)
            if self._path == STANDARD_ERROR:
                sys.stderr.write(text)
                sys.stderr.flush()
            else:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(text)
        except Exception as error:
            # A thread's boundary: no failure here may stop the log or the serving.
            self._lines.labels("failed").inc(len(batch))
            if not self._has_complained:
                self._has_complained = True
                logger.exception("cannot write the call log to %s (%s); serving goes on", self._path, error)
        else:
            self._lines.labels("written").inc(len(batch))


def line_of(call: SettledCall) -> str:
    """Return a call as one line of JSON, its time first."""
    start, receipt, usage = call.start, call.receipt, call.engine_usage
    ended_at = datetime.datetime.fromtimestamp(call.ended_at_s, datetime.UTC)
    line = {
        "time": ended_at.isoformat(timespec="milliseconds"),
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
    return json.dumps(rounded, separators=(",", ":")) + "\n"


def check_writable(path: Path) -> None:
    """Check that lines can be appended.

    Raises:
        SettingsError: if they cannot.
    """
    if path == STANDARD_ERROR:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise SettingsError(
            "observe.call_log", f"cannot write {path} ({error.strerror})", "a file that can be written, or -"
        ) from error
