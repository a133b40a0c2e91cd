"""The log of a server that we run."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from autellix_backend.engines.server_log import ServerLog


def test_the_log_of_the_server_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "replica-0.log"
    log = ServerLog(path)
    log.rotate()
    path.write_text("first", encoding="utf-8")
    log.rotate()
    log.release()

    assert not path.exists()
    assert path.with_suffix(".previous.log").read_text(encoding="utf-8") == "first"


def test_each_of_two_gateways_has_its_own_log(tmp_path: Path) -> None:
    """The second leaves the first one's log alone; a name is free again once its gateway has ended."""
    first, second, third = (ServerLog(tmp_path / "replica-0.log") for _ in range(3))
    first.claim().write_text("first", encoding="utf-8")
    second.rotate()
    second.path.write_text("second", encoding="utf-8")

    assert [log.path.name for log in (first, second)] == ["replica-0.log", "replica-0.2.log"]
    assert (first.tail(), second.tail()) == ("first", "second")
    assert first.claim() == first.path

    first.release()
    third.rotate()
    assert third.path == first.path
    assert (tmp_path / "replica-0.previous.log").read_text(encoding="utf-8") == "first"
    for log in (second, third):
        log.release()


def test_a_file_system_without_locks_keeps_no_engine_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    log = ServerLog(tmp_path / "replica-0.log")

    assert log.claim().name == "replica-0.log"
    log.release()


def test_a_log_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "none.log")
    assert (log.tail(), log.cause()) == ("", f"; see {tmp_path / 'none.log'}")
