"""The log of a server that we run."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_backend.engines.server_log import ServerLog


def test_the_log_of_the_server_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "replica-0.log"
    log = ServerLog(path)
    log.rotate()
    path.write_text("first", encoding="utf-8")
    log.rotate()

    assert not path.exists()
    assert path.with_suffix(".previous.log").read_text(encoding="utf-8") == "first"


def test_a_log_that_another_gateway_rotated_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "replica-0.log"
    path.write_text("first", encoding="utf-8")
    replace = Path.replace

    def replace_late(self: Path, target: Path) -> Path:
        replace(self, target)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_late)
    ServerLog(path).rotate()

    assert path.with_suffix(".previous.log").read_text(encoding="utf-8") == "first"


def test_the_tail_of_a_log_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert ServerLog(tmp_path / "none.log").tail().startswith("(cannot read the log:")
