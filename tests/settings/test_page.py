"""The reference page of settings is the one that the code generates."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "settings_page.py"


def test_the_page_is_up_to_date() -> None:
    """Regenerate it with scripts/settings_page.py."""
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"]()


def test_the_chart_knows_the_settings_and_their_bounds() -> None:
    """Helm then refuses what gateways would, which crashed only once they ran."""
    script = runpy.run_path(str(SCRIPT))
    assert script["SCHEMA"].read_text(encoding="utf-8") == script["chart_schema"]()
