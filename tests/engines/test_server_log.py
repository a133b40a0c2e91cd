"""The log of a server that we run."""

from __future__ import annotations

from pathlib import Path

from autellix_backend.engines.server_log import ServerLog


def test_the_log_of_the_server_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "replica-0.log"
    log = ServerLog(path)
    log.rotate()
    path.write_text("first", encoding="utf-8")
    log.rotate()

    assert not path.exists()
    assert path.with_suffix(".previous.log").read_text(encoding="utf-8") == "first"


def test_a_log_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "none.log")
    assert (log.tail(), log.cause()) == ("", f"; see {tmp_path / 'none.log'}")
