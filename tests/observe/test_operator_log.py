"""The lines of the gateway's log: failed calls, administrative acts and refused keys, within a bound."""

from __future__ import annotations

import json
import logging

import pytest
from tests.observe.settled_calls import settled_call

from autellix_backend.observe.operator_log import (
    MAX_LINES,
    MAX_VALUE,
    AuditLog,
    FailureLog,
    JsonFormatter,
    TextFormatter,
)
from autellix_backend.observe.settled_call import Outcome, SettledCall


class Clock:
    """Seconds that a test sets."""

    now = 7.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def failed(outcome: Outcome = Outcome.ENGINE_ERROR, **fields: object) -> SettledCall:
    return settled_call(outcome=outcome, status=503, reason="no free worker", **fields)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.OK, Outcome.ABORTED}))
def test_a_failed_call_has_a_line_with_its_cause(outcome: Outcome, caplog: pytest.LogCaptureFixture) -> None:
    call = failed(outcome, request_id="req 1")
    FailureLog().take(call)

    [record] = caplog.records
    message = record.getMessage()
    engine = call.engine
    assert message.startswith(f'a call failed: engine={engine} status=503 outcome={outcome} reason="no free')
    assert 'request_id="req 1"' in message
    assert record.levelname == ("INFO" if outcome is Outcome.REJECTED else "WARNING")


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ABORTED])
def test_other_calls_have_none(outcome: Outcome, caplog: pytest.LogCaptureFixture) -> None:
    FailureLog().take(settled_call(outcome=outcome))
    assert caplog.records == []


def test_lines_are_bounded_and_missing_ones_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = FailureLog(clock)
    for _ in range(3 * MAX_LINES):
        log.take(failed())
    assert len(caplog.records) == MAX_LINES
    clock.now += 1
    for _ in range(2):
        log.take(failed())
    *_, first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith(f"({2 * MAX_LINES} such lines before are left out)")
    assert "left out" not in second


def test_a_flood_of_refused_keys_hides_no_act(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(Clock())
    for _ in range(3 * MAX_LINES):
        audit.refusal("refused a key", client="10.0.0.1")
    audit.act("draining engines, POST", path="/autellix/v1/engines/a/drain", tenant="ops", client="10.0.0.2")
    assert caplog.messages[-1] == (
        "audit: draining engines, POST path=/autellix/v1/engines/a/drain tenant=ops client=10.0.0.2"
    )


def test_what_others_write_stays_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    AuditLog().refusal("refused a key", forwarded_for="1.2.3.4\n2026 INFO forged", path="x" * 1000)
    [message] = caplog.messages
    assert message.startswith('audit: refused a key forwarded_for="1.2.3.4\\n2026 INFO forged" path=xxx')
    assert message.endswith("x" * (MAX_VALUE - 1) + "…")


def test_a_line_has_its_time_and_level() -> None:
    record = logging.LogRecord("autellix.failures", logging.WARNING, "", 0, "it %s", ("failed",), None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    assert TextFormatter().format(record) == "2023-11-14T22:13:20.250Z WARNING it failed"


def test_a_line_can_be_json_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    FailureLog().take(failed())
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (line["level"], line["logger"], line["status"]) == ("WARNING", "autellix.failures", 503)
    assert (line["outcome"], line["reason"]) == ("engine_error", "no free worker")
    assert line["time"].endswith("Z")


def test_a_json_line_keeps_a_traceback_in_one_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        found = (type(error), error, error.__traceback__)
    record = logging.LogRecord("autellix", logging.ERROR, "", 0, "it failed", (), found)
    formatted = JsonFormatter().format(record)
    assert "\n" not in formatted
    assert "ValueError: broken" in json.loads(formatted)["traceback"]
