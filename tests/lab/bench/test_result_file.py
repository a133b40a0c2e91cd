from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.bench.result_file import (
    ReplayResult,
    ResultFileError,
    join_rounds,
    make_result,
    read_result,
    result_to_json,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace

RECEIPT = {"arrival_step": 1, "finish_step": 4, "wait_s": 0.5, "service_s": 1, "preemptions": 1}


def program(name: str) -> ProgramTrace:
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=4, decode_tokens=10)
    return ProgramTrace(source="test", program_id=name, calls=(call,))


def make(*, receipt: dict[str, Any] | None = RECEIPT, lost: bool = False) -> ReplayResult:
    def result(name: str, finish_s: float, error: str | None = None) -> CallResult:
        return CallResult(
            program=name,
            call=0,
            thread="main",
            submit_s=0.0,
            finish_s=finish_s,
            output_tokens=10,
            receipt=receipt,
            error=error,
        )

    results = [result("a", 2.0), result("b", 9.0, "late" if lost else None)]
    return make_result({"seed": 1}, [program("a"), program("b")], [0.0, 1.0], results)


def test_a_result_counts_what_was_lost() -> None:
    result = make(lost=True, receipt=None)
    assert (result.programs, result.calls, result.lost_calls, len(result.outcomes)) == (2, 2, 1, 1)
    assert (result.duration_s, result.errors, result.calls_without_report) == (2.0, ("late",), 1)


def test_rounds_are_joined_program_by_program() -> None:
    whole, cut = make(), make(lost=True)
    joined = join_rounds([whole, cut])
    assert [outcome.program for outcome in joined.outcomes] == ["a, round 1", "b, round 1", "a, round 2"]
    assert (joined.programs, joined.calls, joined.lost_calls, joined.errors) == (4, 4, 1, ("late",))
    assert joined.duration_s == (9.0 + 2.0) / 2
    assert joined.setting == {"seed": 1, "rounds": 2}
    assert join_rounds([whole]) is whole


@pytest.mark.parametrize("receipt", [RECEIPT, None])
def test_a_result_survives_its_file(tmp_path: Path, receipt: dict[str, Any] | None) -> None:
    path = tmp_path / "r.json"
    original = make(receipt=receipt)
    path.write_text(json.dumps(result_to_json(original)))
    assert read_result(path) == original


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"kind": "x"}, "kind", "is not 'autellix-replay'"),
        ({"version": 1}, "version", "is 1; expected 2"),
        ({"lost_calls": "0"}, "lost_calls", "is '0'; expected int"),
        ({"lost_calls": True}, "lost_calls", "is True; expected int"),
        ({"duration_s": None}, "duration_s", "is None; expected float"),
        ({"duration_s": float("nan")}, "file", "is not JSON"),
        ({"outcomes": {}}, "outcomes", "is {}; expected a list"),
        ({"outcomes": [1]}, "outcomes[0]", "is 1; expected an object"),
        ({"outcomes": [{"program": "p"}]}, "outcomes[0].source", "is missing"),
    ],
)
def test_a_malformed_file_is_named_with_its_field(
    tmp_path: Path, change: dict[str, Any], field: str, problem: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(result_to_json(make()) | change))
    with pytest.raises(ResultFileError) as caught:
        read_result(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}: {field} {problem}")


def test_an_outcomes_field_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    document = result_to_json(make())
    document["outcomes"][1]["latency_s"] = "long"
    path.write_text(json.dumps(document))
    with pytest.raises(ResultFileError, match=r"outcomes\[1\]\.latency_s is 'long'; expected float"):
        read_result(path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000], ids=["empty", "cut", "list", "bytes", "deep"]
)
def test_an_invalid_result_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(ResultFileError, match=r"r\.json"):
        read_result(path)
    with pytest.raises(ResultFileError, match="cannot be read"):
        read_result(tmp_path / "absent.json")
