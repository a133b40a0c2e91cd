"""The file of the call log, which a thread writes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.observe.settled_calls import settled_call
from tests.waiting import wait_until

from autellix_backend.observe import call_log
from autellix_backend.observe.call_log import STANDARD_ERROR, CallLog, check_writable
from autellix_backend.settings import SettingsError


def test_lines_go_to_the_file_in_order_and_the_end_waits_for_them(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    registry = CollectorRegistry()
    threads = threading.active_count()
    log = CallLog(path, registry)
    log.open()
    for number in range(500):
        log.put(settled_call(call_id=f"c{number}"))
    log.close()

    assert [f"c{number}" for number in range(500)] == [
        json.loads(line)["call_id"] for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert registry.get_sample_value("autellix_call_log_lines_total", {"result": "written"}) == 500
    assert threading.active_count() == threads


def test_the_dash_is_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    log = CallLog(STANDARD_ERROR, CollectorRegistry())
    log.open()
    log.put(settled_call())
    log.close()

    assert json.loads(capfd.readouterr().err)["call_id"] == "c"


def test_a_moved_file_is_created_again(tmp_path: Path) -> None:
    """As log rotation does."""
    path = tmp_path / "calls.jsonl"
    log = CallLog(path, CollectorRegistry())
    log.open()
    log.put(settled_call())
    wait_until(path.exists)
    path.rename(tmp_path / "old")
    log.put(settled_call())
    log.close()

    assert len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_lines_without_room_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue delays nobody."""
    monkeypatch.setattr(call_log, "MAX_PENDING", 3)
    registry = CollectorRegistry()
    log = CallLog(tmp_path / "calls.jsonl", registry)
    for _ in range(5):
        log.put(settled_call())

    assert registry.get_sample_value("autellix_call_log_lines_total", {"result": "dropped"}) == 2
    log.open()
    log.close()
    assert registry.get_sample_value("autellix_call_log_lines_total", {"result": "written"}) == 3


def test_a_failing_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    registry = CollectorRegistry()
    log = CallLog(folder / "calls.jsonl", registry)
    folder.rmdir()
    log.open()
    log.put(settled_call())
    while registry.get_sample_value("autellix_call_log_lines_total", {"result": "failed"}) != 1:
        os.sched_yield()
    log.put(settled_call())
    log.close()

    assert registry.get_sample_value("autellix_call_log_lines_total", {"result": "failed"}) == 2
    assert len(caplog.records) == 1


def test_what_the_file_system_refuses_is_a_settings_error_before_and_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 100)
    with pytest.raises(SettingsError, match=r"observe\.call_log: cannot write .*name too long"):
        check_writable(path)
    with pytest.raises(SettingsError, match=r"observe\.call_log: cannot write .*name too long"):
        CallLog(path, CollectorRegistry())


def test_a_full_disk_is_counted_and_the_log_can_be_closed() -> None:
    registry = CollectorRegistry()
    log = CallLog(Path("/dev/full"), registry)
    log.open()
    log.put(settled_call())
    log.put(settled_call())
    log.close()

    assert registry.get_sample_value("autellix_call_log_lines_total", {"result": "failed"}) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is Linux's /dev/full")
def test_a_full_disk_is_a_problem_until_a_line_is_written(tmp_path: Path) -> None:
    log = CallLog(Path("/dev/full"), CollectorRegistry())
    log.open()
    log.put(settled_call())
    while log.problem is None:
        os.sched_yield()
    assert log.problem == "No space left on device"
    log._path = tmp_path / "calls.jsonl"
    log.put(settled_call())
    log.close()
    assert log.problem is None
