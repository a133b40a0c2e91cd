"""The gateway's log: lines with their time and level, on request as JSON.

Failed calls, administrative acts and refused keys have a line each, within a bound for each kind: a client
that fails a thousand times a second must not fill the disk.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from autellix_backend.observe.settled_call import Outcome, SettledCall

MAX_LINES = 10
"""Lines of one kind in a second; the next one says how many are missing."""
MAX_VALUE = 200
"""Characters of a value that others chose."""

FAILURES = logging.getLogger("autellix.failures")
AUDIT = logging.getLogger("autellix.audit")
_FIELDS = "autellix_fields"


class TextFormatter(logging.Formatter):
    """`2026-11-29T03:00:00.123Z WARNING the message`."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """A JSON object in each line: `time`, `level`, `logger`, `message`, and the fields of the event."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{record.msecs:03.0f}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def configure_log(*, is_json: bool) -> None:
    """Write the log of this process to standard error, from INFO on for our own parts, else from WARNING."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    for name in ("autellix", "autellix_backend"):
        logging.getLogger(name).setLevel(logging.INFO)


class EventLines:
    """Writes the lines of one kind of event, so many in a second."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._second = -1
        self._lines = 0
        self._missing = 0

    def write(self, level: int, text: str, fields: Mapping[str, object] = MappingProxyType({})) -> None:
        """Write a line with the fields that are not None, or count it as missing."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= MAX_LINES:
            self._missing += 1
            return
        self._lines += 1
        known = {name: _cut(value) for name, value in fields.items() if value not in (None, "")}
        words = [text, *(f"{name}={_quoted(value)}" for name, value in known.items())]
        if self._missing:
            words.append(f"({self._missing} such lines before are left out)")
            known["left_out"] = self._missing
            self._missing = 0
        self._logger.log(level, "%s", " ".join(words), extra={_FIELDS: known})


class FailureLog:
    """Logs each call that failed, with the engine's words."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = EventLines(FAILURES, clock)

    def take(self, call: SettledCall) -> None:
        """Log a call if it failed; the client's faults as information."""
        if call.outcome in (Outcome.OK, Outcome.ABORTED):
            return
        level = logging.INFO if call.outcome is Outcome.REJECTED else logging.WARNING
        fields = {
            "engine": call.engine,
            "status": call.status,
            "outcome": call.outcome.value,
            "reason": call.reason,
            "model": call.model,
            "tenant": call.tenant,
            "program": call.receipt.program_id,
            "call": call.start.call_id,
            "request_id": call.request_id,
            "after_s": round(call.duration_s, 3),
        }
        self._lines.write(level, "a call failed:", fields)


class AuditLog:
    """Logs administrative acts and refused keys, with the address of the client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._acts = EventLines(AUDIT, clock)
        self._refusals = EventLines(AUDIT, clock)

    def act(self, what: str, **fields: object) -> None:
        """Log an administrative act."""
        self._acts.write(logging.INFO, f"audit: {what}", fields)

    def refusal(self, what: str, **fields: object) -> None:
        """Log a refused key, or an act that its client may not do."""
        self._refusals.write(logging.WARNING, f"audit: {what}", fields)


def _cut(value: object) -> object:
    if not isinstance(value, str):
        return value
    return value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 1] + "…"


def _quoted(value: object) -> str:
    """Return a value for a line: texts with blanks or unprintable characters in quotes."""
    text = str(value)
    is_plain = text.isprintable() and not any(each in text for each in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
