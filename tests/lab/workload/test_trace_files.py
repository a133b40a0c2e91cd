from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace import ProgramTrace, TraceError
from autellix_lab.workload.trace_files import read_traces, write_traces


def line(**changes: Any) -> dict[str, Any]:
    call = {
        "id": 0,
        "parents": [],
        "thread": "main",
        "prefill_tokens": 10,
        "decode_tokens": 5,
        "shared_prefix_tokens": 0,
        "prefix_from": None,
        "gap_before_s": None,
        "kind": "root",
    }
    second = {
        **call,
        "id": 1,
        "parents": [0],
        "prefill_tokens": 20,
        "shared_prefix_tokens": 15,
        "prefix_from": 0,
    }
    second |= {key[7:]: value for key, value in changes.items() if key.startswith("second_")}
    program = {"source": "s", "program_id": "p", "group": "g", "tokenizer": "t", "calls": [call, second]}
    return program | {key: value for key, value in changes.items() if not key.startswith("second_")}


def load(tmp_path: Path, *lines: Any) -> list[ProgramTrace]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in lines))
    return read_traces(path)


def test_reads_a_program(tmp_path: Path) -> None:
    (program,) = load(tmp_path, line(arrival_s=3, models=["m"]))
    assert (program.arrival_s, program.models, program.decode_tokens) == (3.0, ("m",), 10)
    assert program.calls[1].new_tokens == 5
    assert not program.is_parallel


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_writes_what_it_reads(tmp_path: Path, name: str) -> None:
    programs = generate_programs("mixed", 6, seed=3)
    write_traces(tmp_path / name, programs)
    assert programs == read_traces(tmp_path / name)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: line is not JSON"),
        pytest.param("[" * 100_000, "line 2: line is not JSON", id="deep"),
        pytest.param("1" * 5_000, "line 2: line is not JSON", id="digits"),
        ("[]", "line 2: line is not a JSON object"),
        (line(colour="red"), "line 2: colour is unknown"),
        (line(calls=None), "line 2: calls is None; expected a list"),
        (line(calls=[]), "line 2: calls is empty"),
        (line(calls=[1]), r"line 2: calls\[0\] is 1; expected an object"),
        (line(calls=[{"id": 0}]), r"line 2: calls\[0\]\.parents is missing"),
        (line(second_prefill_tokens="9"), r"line 2: calls\[1\]\.prefill_tokens is '9'; expected int"),
        (line(second_prefill_tokens=True), r"calls\[1\]\.prefill_tokens is True; expected int"),
        (line(second_parents=3), r"calls\[1\]\.parents is 3; expected a list"),
        (line(second_parents=[1]), r"calls\[1\]\.parents is \(1,\); expected ids of earlier calls"),
        (line(second_id=7), r"calls\[1\]\.id is 7; expected 1"),
        (
            line(second_shared_prefix_tokens=16),
            r"calls\[1\]\.shared_prefix_tokens is 16; expected at most 15",
        ),
        (line(second_prefix_from=None), r"calls\[1\]\.shared_prefix_tokens is 15; expected 0 without"),
        (line(second_gap_before_s=-1.0), r"calls\[1\]\.gap_before_s is -1\.0"),
        (
            line(second_gap_before_s=float("inf")),
            r"calls\[1\]\.gap_before_s is inf; expected null or finite seconds",
        ),
        (
            line(second_start_s=1e308, second_latency_s=1e308),
            r"calls\[1\]\.start_s is 1e\+308; expected null",
        ),
        (line(arrival_s=float("nan")), r"arrival_s is nan; expected null or finite seconds"),
        (line(second_prefix_from=1), r"calls\[1\]\.prefix_from is 1; expected null or the id of an earlier"),
        (line(second_prefill_tokens=0), r"calls\[1\]\.prefill_tokens is 0; expected more than zero"),
        (
            line(second_shared_prefix_tokens=21, second_prefill_tokens=20),
            r"calls\[1\]\.shared_prefix_tokens is 21; expected 0 to prefill_tokens",
        ),
        (line(second_decode_tokens=-1), r"calls\[1\]\.decode_tokens is -1"),
    ],
)
def test_an_error_names_the_line_and_the_field(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        load(tmp_path, line(), bad)
    assert "trace.jsonl" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.jsonl cannot be read"):
        read_traces(tmp_path / "absent.jsonl")


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_text("no archive")
    with pytest.raises(TraceError, match=r"x\.jsonl\.gz cannot be read"):
        read_traces(tmp_path / "x.jsonl.gz")
    # A good head, and then no such kind of block.
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
    with pytest.raises(TraceError, match=r"x\.jsonl\.gz cannot be read"):
        read_traces(tmp_path / "x.jsonl.gz")
