"""Request logs as CSV: arrival times and lengths of requests.

Source of the format: Azure/AzurePublicDataset, AzureLLMInferenceTrace_{code,conv}.csv, read at commit
b469a11: columns TIMESTAMP (date and time), ContextTokens, GeneratedTokens. The same with seconds (`t_s`,
`context_tokens`, `generated_tokens`) is read too, plain or as .csv.gz.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autellix_lab.workload.trace import TraceError

TIME_COLUMNS = ("t_s", "timestamp", "arrival_s", "arrived_at")
PROMPT_COLUMNS = ("context_tokens", "contexttokens", "input_length")
ANSWER_COLUMNS = ("generated_tokens", "generatedtokens", "output_length")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One row: seconds after the first row, tokens of the prompt and of the answer."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int


def read_request_log(path: Path) -> list[LoggedRequest]:
    """Read arrivals and lengths, in the file's order.

    Raises:
        TraceError: for a file, a column or a value that cannot be used; names the line and the column.
    """
    log = _Log(path)
    prompt, answer = log.column(PROMPT_COLUMNS), log.column(ANSWER_COLUMNS)
    times_s = log.times_s(log.column(TIME_COLUMNS))
    return [
        LoggedRequest(time_s, log.tokens(row, prompt), log.tokens(row, answer))
        for time_s, row in zip(times_s, log.rows, strict=True)
    ]


class _Log:
    """The header and the rows of a file, each row with its line."""

    def __init__(self, path: Path) -> None:
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
            reader = csv.reader(io.StringIO(text))
            lines = [(reader.line_num, row) for row in reader if row]
        except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
            raise TraceError(str(path), f"cannot be read: {error}") from error
        if len(lines) < 2:
            raise TraceError("file", "has no rows; expected a header and one row or more", str(path))
        self.path = path
        self.header = [name.strip() for name in lines[0][1]]
        self.rows = lines[1:]

    def column(self, names: Sequence[str]) -> int:
        lowered = [name.lower() for name in self.header]
        found = next((lowered.index(name) for name in names if name in lowered), None)
        if found is None:
            problem = f"is {', '.join(self.header)}; expected a column {' or '.join(names)}"
            raise TraceError("header", problem, f"{self.path}, line 1")
        return found

    def tokens(self, row: tuple[int, list[str]], column: int) -> int:
        text = self._cell(row, column)
        if not text.isascii() or not text.isdigit():
            raise self._error(row, column, f"is {text!r}; expected a whole number of tokens")
        return int(text)

    def times_s(self, column: int) -> list[float]:
        times = []
        for row in self.rows:
            text = self._cell(row, column)
            time_s = _time_s(text)
            if time_s is None:
                raise self._error(row, column, f"is {text!r}; expected seconds or a date and time")
            times.append(time_s)
        first = min(times)
        return [time_s - first for time_s in times]

    def _cell(self, row: tuple[int, list[str]], column: int) -> str:
        if column >= len(row[1]):
            raise self._error(row, column, f"is missing; expected {len(self.header)} columns")
        return row[1][column].strip()

    def _error(self, row: tuple[int, list[str]], column: int, problem: str) -> TraceError:
        return TraceError(self.header[column], problem, f"{self.path}, line {row[0]}")


def _time_s(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return _date_s(text)
    return number if math.isfinite(number) else None


def _date_s(text: str) -> float | None:
    whole, _, fraction = text.partition(".")
    try:
        moment = datetime.fromisoformat(whole)
        # The Azure files have seven digits, one more than a datetime holds.
        part = float(f"0.{fraction}") if fraction else 0.0
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() + part
