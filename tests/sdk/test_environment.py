"""The name of the process's own program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

SCRIPT = "from autellix._environment import script_name; print(script_name())"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["react.py"], "react.py"),
        (["-m", "flows.react"], "flows.react"),
        (["-"], "None"),
        (["-c", SCRIPT], "None"),
    ],
)
def test_process_is_named_after_its_script(tmp_path: Path, arguments: list[str], name: str) -> None:
    """One that comes from standard input, or from the command line, has no name."""
    (tmp_path / "react.py").write_text(SCRIPT)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "react.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        input=SCRIPT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == name
