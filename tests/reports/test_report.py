"""The report of a call between engine and gateway."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import json

import pytest
from msgspec.structs import asdict

from autellix_backend.core.call import CallRecord
from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.report import EngineReport

RECORD = CallRecord(
    call_id="c",
    program_id="p",
    thread_id="0",
    arrival_s=1.0,
    finish_s=5.0,
    wait_s=1.5,
    table_wait_s=0.5,
    service_s=2.5,
    level=2,
    preemptions=1,
    demotions=2,
    promotions=1,
    inherited_service_s=0.25,
    is_aborted=False,
)
REPORT = EngineReport(
    **asdict(RECORD),
    request_id="chatcmpl-1",
    prompt_tokens=10,
    output_tokens=20,
    cached_tokens=8,
    arrival_step=3,
    finish_step=30,
    engine_steps=21,
    finish_reason="stop",
    dropped_records=4,
    runs=((0.5, 1.0), (2.0, 4.0)),
    prefilled_s=0.75,
)


def test_a_report_survives_the_wire() -> None:
    assert EngineReport.from_bytes(REPORT.to_bytes()) == REPORT


def test_keys_of_a_later_version_are_ignored() -> None:
    message = json.loads(REPORT.to_bytes()) | {"energy_j": 3}

    assert EngineReport.from_bytes(json.dumps(message).encode()) == REPORT


@pytest.mark.parametrize("datagram", [b"{", b"\xff", b"[]", b"{}", b'"x"'])
def test_an_invalid_report_is_refused(datagram: bytes) -> None:
    with pytest.raises(ReportError, match=r"^not an engine report: "):
        EngineReport.from_bytes(datagram)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("service_s", value) for value in (-0.1, 1e10, 1e308)),
        *((name, -1.0) for name in ("wait_s", "table_wait_s", "inherited_service_s", "inactive_s")),
        *(
            (name, -1)
            for name in ("level", "preemptions", "output_tokens", "engine_steps", "dropped_records")
        ),
        ("prompt_tokens", 2**60),
        ("prefilled_s", 1e300),
        ("runs", [[0.0, 1.0], [-5.0, 1.0]]),
    ],
)
def test_a_number_that_no_engine_measures_is_refused(name: str, value: object) -> None:
    """It would be charged to the program, and stay."""
    message = json.loads(REPORT.to_bytes()) | {name: value}

    with pytest.raises(ReportError, match=r"^not an engine report: "):
        EngineReport.from_bytes(json.dumps(message).encode())


def test_a_difference_of_times_may_round_below_zero() -> None:
    message = json.loads(REPORT.to_bytes()) | {"table_wait_s": -1e-9}

    assert EngineReport.from_bytes(json.dumps(message).encode()).table_wait_s == -1e-9
