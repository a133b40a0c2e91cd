"""The pictures of the results show the numbers of their pages."""

from __future__ import annotations

import html
import json
import re
import runpy
from typing import Any

import pytest
from tests.docs.pages import ROOT

DRAWN: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/result_pictures.py"))


@pytest.mark.parametrize("name", DRAWN["PICTURES"])
def test_a_picture_shows_the_numbers_of_its_page(name: str) -> None:
    bars = DRAWN["PICTURES"][name]
    picture = (ROOT / f"docs/results/pictures/{name}.svg").read_text(encoding="utf-8")
    described = re.search(r"<dc:description>(.*?)</dc:description>", picture, re.DOTALL)
    assert described, "no description"
    shown = json.loads(html.unescape(described[1]))
    assert shown == DRAWN["values_of"](bars), "run scripts/result_pictures.py"
    assert f"pictures/{name}.svg" in (ROOT / "docs/results" / bars.page).read_text(encoding="utf-8")
