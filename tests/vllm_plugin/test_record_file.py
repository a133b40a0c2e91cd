"""The file of an engine's record is bounded, and no fault of the disk reaches the engine."""

from __future__ import annotations

import errno
import gzip
import logging
from pathlib import Path

import pytest

from autellix_backend.vllm_plugin.record_file import FLUSHED_LINES, RecordFile
from autellix_lab.sim.engine_record import read_record

LINES = [b'["tick",[%d.0],{},[],[]]\n' % number for number in range(3 * FLUSHED_LINES)]


def test_a_closed_file_has_all_lines(tmp_path: Path) -> None:
    record = RecordFile(tmp_path / "new" / "engine.jsonl.gz")
    for line in LINES[:5]:
        record.write(line)
    record.close()
    record.close()
    record.write(LINES[5])
    assert gzip.decompress(record.path.read_bytes()) == b"".join(LINES[:5])


def test_of_a_process_that_is_killed_few_lines_are_lost(tmp_path: Path) -> None:
    record = RecordFile(tmp_path / "engine.jsonl.gz")
    for line in LINES[: FLUSHED_LINES + 10]:
        record.write(line)
    assert list(read_record(record.path)) == LINES[:FLUSHED_LINES]
    record.close()


def test_a_full_file_ends_and_keeps_its_beginning(tmp_path: Path) -> None:
    record = RecordFile(tmp_path / "engine.jsonl.gz", max_bytes=100)
    for line in LINES:
        record.write(line)
    assert gzip.decompress(record.path.read_bytes()) == b"".join(LINES[:FLUSHED_LINES])


def test_a_folder_that_cannot_be_made_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "vllm.autellix"):
        record = RecordFile(tmp_path / "file" / "engine.jsonl.gz")
        record.write(LINES[0])
        record.close()
    assert "not recorded" in caplog.text


class FullDisk(gzip.GzipFile):
    """A file on a disk without room."""

    def flush(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_record_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip, "GzipFile", FullDisk)
    record = RecordFile(tmp_path / "engine.jsonl.gz")
    for line in LINES:
        record.write(line)
    assert caplog.text.count("No space left") == 1
