"""Mooncake requests as chains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.mooncake import load_mooncake
from autellix_lab.workload.trace import ProgramTrace, TraceError


def request(time_ms: int, blocks: list[int], output: int = 10) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "input_length": 512 * len(blocks) - 100,
        "output_length": output,
        "hash_ids": blocks,
    }


def load(tmp_path: Path, *requests: dict[str, Any]) -> list[ProgramTrace]:
    path = tmp_path / "conv.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    return load_mooncake(path, LoadOptions())


def test_a_request_continues_the_longest_shared_prefix(tmp_path: Path) -> None:
    """Others start a program of their own, with their time as its arrival."""
    chain, alone = load(
        tmp_path,
        request(0, [1, 2, 3]),
        request(500, [7, 8]),
        request(3000, [1, 2, 4, 5]),
        request(9000, [1, 2, 4, 6]),
    )

    assert [call.parents for call in chain.calls] == [(), (0,), (1,)]
    assert [call.prefix_from for call in chain.calls] == [None, 0, 1]
    assert [call.shared_prefix_tokens for call in chain.calls] == [0, 1024, 1536]
    assert [call.start_s for call in chain.calls] == [0.0, 3.0, 9.0]
    assert (alone.program_id, alone.arrival_s, len(alone.calls)) == ("conv_1", 0.5, 1)
    assert chain.calls[1].gap_before_s is None


def test_requests_are_taken_in_order_of_time(tmp_path: Path) -> None:
    """A file out of order gives the same programs."""
    (program,) = load(tmp_path, request(3000, [1, 2, 4]), request(0, [1, 2]))

    assert [call.prefill_tokens for call in program.calls] == [924, 1436]


def test_a_system_prompt_joins_no_programs(tmp_path: Path) -> None:
    """Block 0 begins every request, so it says nothing about who sent it."""
    programs = load(tmp_path, *(request(time, [0, 100 + time]) for time in range(20)))

    assert len(programs) == 20
    assert programs[0].system_prefix_tokens == 512
    assert all(call.shared_prefix_tokens == 0 for program in programs for call in program.calls)


def test_no_more_is_shared_than_the_earlier_calls_context(tmp_path: Path) -> None:
    """Its last block is seldom full."""
    (program,) = load(tmp_path, request(0, [1, 2], output=10), request(1, [1, 2, 3]))

    assert program.calls[1].shared_prefix_tokens == 924 + 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": "now"}, r"line 1: timestamp is 'now'; expected a number"),
        ({"input_length": -1}, r"line 1: input_length is -1; expected zero or more"),
        ({"input_length": 0}, r"line 1: calls\[0\]\.prefill_tokens is 0; expected more than zero"),
        ({"hash_ids": ["a"]}, r"line 1: hash_ids holds 'a'; expected whole numbers"),
    ],
)
def test_an_error_names_the_line_and_the_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=rf"conv\.jsonl, {message}"):
        load(tmp_path, {**request(0, [1]), **change})
