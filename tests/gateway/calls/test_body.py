"""Reading a call's body without touching it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import BY_PATH

COMPLETIONS = BY_PATH["/v1/completions"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"{}", 1),
        (b'{"n": 3}', 3),
        (b'{"n": "3"}', 1),
        (b'{"n": -1}', 1),
        (b'{"prompt": "a"}', 1),
        (b'{"prompt": [1, 2, 3]}', 1),
        (b'{"prompt": []}', 1),
        (b'{"prompt": ["a", "b"], "n": 2}', 4),
        (b'{"prompt": [[1], [2], [3]]}', 3),
    ],
)
def test_records_are_counted_by_prompts_and_choices(body: bytes, count: int) -> None:
    assert parse_body(body, COMPLETIONS).record_count == count


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_unknown_counts_are_left_out(path: str) -> None:
    assert parse_body(b'{"prompt": ["a", "b"], "n": 2}', BY_PATH[path]).record_count == 1
    assert parse_body(b'{"prompt": ["a", "b"], "n": 2}', BY_PATH["/v1/chat/completions"]).record_count == 2


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/chat/completions", {"model": "m", "stream": True}, ("chat", "m", True)),
        ("/v1/completions", {"model": "m", "stream": False}, ("text_completion", "m", False)),
        ("/v1/embeddings", {}, ("embeddings", None, False)),
        ("/v1/responses", {"model": 7, "stream": "yes"}, ("chat", None, False)),
        ("/v1/messages", {"model": "x" * 1000, "stream": None}, ("chat", "x" * 256, False)),
    ],
)
def test_a_request_is_read_for_logs(path: str, fields: dict[str, Any], expected: tuple[object, ...]) -> None:
    dialect = BY_PATH[path]
    body = parse_body(json.dumps(fields).encode(), dialect)

    assert (dialect.operation, body.model, body.is_streaming) == expected
