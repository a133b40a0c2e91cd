"""Whatever a field holds, a loader gives programs or one error that names the file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders import LoadOptions, load
from autellix_lab.workload.trace import ProgramTrace, TraceError

CALL = {
    "t": 4.0,
    "type": "n",
    "in": 100,
    "out": 5,
    "hash_ids": [1],
    "input_types": ["text"],
    "api_time": 1.0,
    "think_time": 1.0,
}
CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.usage.input_tokens": 50,
    "gen_ai.usage.cache_read.input_tokens": 20,
    "gen_ai.usage.output_tokens": 5,
    "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "a"}]}],
    "gen_ai.output.messages": '[{"role": "assistant", "content": "b"}]',
}
SPAN = {
    "trace_id": "t",
    "span_id": "2",
    "parent_span_id": "1",
    "name": "chat m",
    "start_time": "2026-06-01T05:40:20.151Z",
    "end_time": "2026-06-01T05:40:21Z",
    "attributes": CHAT,
    "status": {"code": 1},
}
OTLP_SPAN = {
    "traceId": "t",
    "spanId": "2",
    "parentSpanId": "1",
    "name": "chat m",
    "startTimeUnixNano": "1780000000000000000",
    "endTimeUnixNano": 1780000001000000000,
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "50"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 5}},
        {"key": "autellix.parent.ids", "value": {"arrayValue": {"values": [{"stringValue": "p"}]}}},
    ],
}
SAMPLES: dict[str, Any] = {
    "recorded": {
        "source": "s",
        "program_id": "p",
        "calls": [
            {"prefill_tokens": 9, "decode_tokens": 2, "start_s": 0.0, "latency_s": 1.0},
            {
                "parents": [0],
                "prefill_tokens": 9,
                "decode_tokens": 2,
                "shared_prefix_tokens": 3,
                "start_s": 3.0,
            },
        ],
    },
    "sharegpt": [
        {"id": "c", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    ],
    "bfcl": {
        "id": "t_1",
        "question": [[{"role": "user", "content": "a"}]],
        "involved_classes": ["MathAPI"],
        "missed_function": {"0": ["add"]},
        "excluded_function": ["mean"],
    },
    "mooncake": {"timestamp": 3, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
    "tracelab": {
        "session_id": "s",
        "round_index": 0,
        "round_id": "r",
        "project": "p",
        "model": "m",
        "input_tokens_total": 50,
        "prefix_tokens": 20,
        "output_tokens": 5,
        "timing_events": [
            {"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"},
            {"event_type": "text", "timestamp": "2026-06-01T05:40:29.887Z"},
        ],
    },
    "claude_code": {
        "id": "s",
        "block_size": 64,
        "tool_tokens": 5,
        "system_tokens": 5,
        "models": ["m"],
        "requests": [
            CALL,
            {"t": 9.0, "type": "subagent", "agent_id": "a", "duration_ms": 3000, "requests": [CALL]},
            CALL,
        ],
    },
    "otel": {"spans": [{**SPAN, "span_id": "1", "attributes": {}, "name": "invoke_agent a"}, SPAN, SPAN]},
    "otel:otlp": {"resourceSpans": [{"scopeSpans": [{"spans": [OTLP_SPAN, OTLP_SPAN]}]}]},
}
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
    "x",
    "",
    [],
    {},
    [[]],
    [None],
    [{}],
    {"a": 1},
)

Path_ = tuple[str | int, ...]


def paths(value: Any, prefix: Path_ = ()) -> Iterator[Path_]:
    """Give the place of every value in a JSON value."""
    yield prefix
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, item in items:
        yield from paths(item, (*prefix, key))


def replaced(sample: Any, path: Path_, junk: Any) -> Any:
    """Return a copy with one value replaced."""
    if not path:
        return junk
    changed = copy.deepcopy(sample)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = junk
    return changed


def write(tmp_path: Path, content: Any) -> Path:
    """Write a file with the answers and descriptions that BFCL needs."""
    (tmp_path / "possible_answer").mkdir(exist_ok=True)
    (tmp_path / "possible_answer" / "in.json").write_text('{"id": "t_1", "ground_truth": [["add(1)"]]}')
    (tmp_path / "multi_turn_func_doc").mkdir(exist_ok=True)
    (tmp_path / "multi_turn_func_doc" / "math_api.json").write_text('{"name": "add"}')
    path = tmp_path / "in.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_loads(tmp_path: Path, name: str) -> None:
    """The samples themselves are sound, and told apart."""
    programs = load(write(tmp_path, SAMPLES[name]))

    assert programs == load(write(tmp_path, SAMPLES[name]), name.split(":")[0])
    assert sum(len(program.calls) for program in programs) > 0


@pytest.mark.parametrize("name", SAMPLES)
def test_junk_anywhere_gives_programs_or_a_clear_error(tmp_path: Path, name: str) -> None:
    """No value in any place ends in another error."""
    refused = 0
    for path in paths(SAMPLES[name]):
        for junk in JUNK:
            file = write(tmp_path, replaced(SAMPLES[name], path, junk))
            try:
                programs = load(file, name.split(":")[0], LoadOptions())
            except TraceError as error:
                assert str(tmp_path) in str(error), (path, junk)
                refused += 1
            else:
                assert all(isinstance(program, ProgramTrace) for program in programs)

    assert refused > 20
