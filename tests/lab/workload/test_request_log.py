"""CSV logs of requests: columns, times and errors with their place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from autellix_lab.workload.request_log import LoggedRequest, read_request_log
from autellix_lab.workload.trace import TraceError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def write(tmp_path: Path, text: str, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_reads_the_azure_columns(tmp_path: Path) -> None:
    """Dates with seven digits after the second become seconds after the first row."""
    first, second = read_request_log(write(tmp_path, AZURE))

    assert LoggedRequest(0.0, 4808, 10) == first
    assert (second.prompt_tokens, second.answer_tokens) == (3180, 8)
    assert second.arrival_s == pytest.approx(0.052, abs=1e-6)


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_reads_seconds(tmp_path: Path, name: str) -> None:
    """Numbers are seconds after the first row in time; rows keep their order."""
    text = "t_s,context_tokens,generated_tokens\n5.5,1,2\n\n5,3,4\n"

    found = read_request_log(write(tmp_path, text, name))
    assert [request.arrival_s for request in found] == [0.5, 0.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"log\.csv: file has no rows; expected a header and one row or more"),
        ("a,b\n1,2\n", r"log\.csv, line 1: header is a, b; expected a column context_tokens or"),
        (AZURE.replace("3180", "-3"), r"line 3: ContextTokens is '-3'; expected a whole number of tokens"),
        (AZURE.replace(",8", ""), r"line 3: GeneratedTokens is missing; expected 3 columns"),
        (
            AZURE.replace("2023-11-16 18:17:04.0", "later"),
            r"line 3: TIMESTAMP is 'later319600'; expected seco",
        ),
        (
            AZURE.replace("2023-11-16 18:17:04.0319600", "nan"),
            r"line 3: TIMESTAMP is 'nan'; expected seconds",
        ),
    ],
)
def test_an_error_names_the_line_and_the_column(tmp_path: Path, text: str, message: str) -> None:
    """So does one in the header."""
    with pytest.raises(TraceError, match=message):
        read_request_log(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message gives the path."""
    with pytest.raises(TraceError, match=r"absent\.csv cannot be read"):
        read_request_log(tmp_path / "absent.csv")
