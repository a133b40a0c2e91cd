"""What logs and traces read of a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.observe.facts import TRACEPARENT

from autellix_backend.gateway.calls.request_facts import read_request


def raw(fields: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


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
    request = read_request(path, {"traceparent": TRACEPARENT}, raw(fields))

    assert (request.operation, request.model, request.is_streaming) == expected
    assert request.traceparent == TRACEPARENT
