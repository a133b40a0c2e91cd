"""The pages that scripts write from the code are up to date."""

from __future__ import annotations

import re
import runpy
from collections import Counter

import pytest
from tests.docs.pages import ROOT


@pytest.mark.parametrize("script", ["cli_page", "scoreboard_page"])
def test_the_page_is_up_to_date(script: str) -> None:
    path = ROOT / "scripts" / f"{script}.py"
    made = runpy.run_path(str(path))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), f"run scripts/{script}.py"


def test_the_command_line_describes_each_option_once() -> None:
    rows = re.findall(r"^\| `-.*", (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 15
    assert [row for row, count in Counter(rows).items() if count > 1] == []
