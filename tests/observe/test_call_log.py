"""The line of a call in the log."""

from __future__ import annotations

import json

import pytest
from tests.observe.settled_calls import settled_call

from autellix_backend.observe.call_log import line_of


def test_a_line_has_identity_time_and_duration() -> None:
    line = json.loads(line_of(settled_call(wait_s=0.25000000001)))

    assert list(line)[:4] == ["time", "event", "call_id", "program_id"]
    assert (line["time"], line["event"]) == ("2023-11-14T22:13:20.500000+00:00", "call")
    assert (line["parents"], line["tools"]) == (["a", "b"], [{"name": "search", "duration_s": 0.5}])
    assert (line["wait_s"], line["service_s"], line["level"]) == (0.25, 1.5, 2)
    assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert "traceparent" not in line


@pytest.mark.parametrize("traceparent", [None, "", "garbage", "00-1-2"])
def test_a_call_without_a_trace_has_a_null_trace_id(traceparent: str | None) -> None:
    assert json.loads(line_of(settled_call(traceparent=traceparent)))["trace_id"] is None
