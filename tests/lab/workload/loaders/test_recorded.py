"""Recorded traces whose lines leave fields out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.recorded import load_recorded
from autellix_lab.workload.trace import ProgramTrace, TraceError

CALL = {"prefill_tokens": 10, "decode_tokens": 5}


def load(tmp_path: Path, *programs: Any) -> list[ProgramTrace]:
    path = tmp_path / "day.jsonl"
    path.write_text("\n".join(map(json.dumps, programs)))
    return load_recorded(path, LoadOptions())


def test_lengths_alone_make_a_thread(tmp_path: Path) -> None:
    """Everything else is filled in."""
    first, second = load(tmp_path, {"calls": [CALL, CALL]}, {"calls": [CALL], "program_id": "p"})

    assert (first.program_id, first.group, first.source) == ("day_0", "day_0", "recorded")
    assert [(call.id, call.parents, call.thread, call.kind) for call in first.calls] == [
        (0, (), "main", "root"),
        (1, (0,), "main", "chain"),
    ]
    assert (second.program_id, second.group) == ("p", "p")


def test_threads_run_beside_each_other(tmp_path: Path) -> None:
    """A call follows the last of its own thread unless it names its parents."""
    threads = [CALL, {**CALL, "thread": "b"}, CALL, {**CALL, "parents": [1, 2]}]

    (program,) = load(tmp_path, {"calls": threads})

    assert [call.parents for call in program.calls] == [(), (), (0,), (1, 2)]


def test_a_shared_prefix_is_the_first_parent_s(tmp_path: Path) -> None:
    """Unless it is said whose."""
    (program,) = load(tmp_path, {"calls": [CALL, {**CALL, "shared_prefix_tokens": 4}]})

    assert program.calls[1].prefix_from == 0


@pytest.mark.parametrize(
    ("start_s", "gap_s"), [(10.0, 7.0), (2.0, 0.0), (None, None)], ids=["later", "overlapping", "unknown"]
)
def test_gaps_follow_from_times(tmp_path: Path, start_s: float | None, gap_s: float | None) -> None:
    """From the end of the last parent to the start, where both are known."""
    timed = {**CALL, "start_s": 1.0, "latency_s": 2.0}

    (program,) = load(tmp_path, {"calls": [timed, {**CALL, "start_s": start_s}]})

    assert program.calls[1].gap_before_s == gap_s


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({}, "calls is missing; expected a list"),
        ({"calls": [{"decode_tokens": 1}]}, r"calls\[0\]\.prefill_tokens is missing"),
        ({"calls": [{**CALL, "parents": 3, "start_s": "x"}]}, r"calls\[0\]\.parents is 3; expected a list"),
        ({"calls": [{**CALL, "thread": [1]}]}, r"calls\[0\]\.thread is \[1\]; expected str"),
        (
            {"calls": [{**CALL, "shared_prefix_tokens": 1}]},
            r"calls\[0\]\.shared_prefix_tokens is 1; expected 0",
        ),
    ],
)
def test_an_error_names_the_line_and_the_field(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"day\.jsonl, line 2: {message}"):
        load(tmp_path, {"calls": [CALL]}, bad)
