"""The log of a server that we run."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_backend.engines.base import StateFolderError
from autellix_backend.engines.server_log import ServerLog


def test_the_log_of_the_server_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "replica-0.log"
    log = ServerLog(path)
    log.rotate()
    path.write_text("first", encoding="utf-8")
    log.rotate()

    assert not path.exists()
    assert path.with_suffix(".previous.log").read_text(encoding="utf-8") == "first"


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy() -> None:
    with pytest.raises(
        StateFolderError, match=r"^engine.state_dir: /proc/logs cannot .* AUTELLIX_CACHE_DIR$"
    ):
        ServerLog(Path("/proc/logs/replica-0.log")).rotate()


def test_a_log_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "none.log")
    assert (log.tail(), log.cause()) == ("", f"; see {tmp_path / 'none.log'}")
    assert log.last_line() is None


def test_the_last_line_is_before_the_traceback_and_its_consequences(tmp_path: Path) -> None:
    core, server = "(EngineCore pid=7) ", "(APIServer pid=6) "
    lines = [
        f"{core}INFO 11-27 17:01:36 [cpu_worker.py:260] Explicitly set 1.0 GiB for KV cache on node 0.",
        f"{core}ERROR 11-27 17:01:37 [core.py:1] EngineCore failed to start.",
        f"{core}ERROR 11-27 17:01:37 [core.py:1] Traceback (most recent call last):",
        f'{core}ERROR 11-27 17:01:37 [core.py:1]   File "core.py", line 3, in run',
        f"{core}ERROR 11-27 17:01:37 [core.py:1] ValueError: 8,192 tokens do not fit",
        f"{server}Traceback (most recent call last):",
        f"{server}    raise RuntimeError(",
        f"{server}RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    log = ServerLog(path)
    assert log.cause() == ": ValueError: 8,192 tokens do not fit"
    assert log.last_line() == "EngineCore failed to start."
