"""A picture of each view: in the light, in the dark, and on narrower screens; nothing in it is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.page.browser import BrowserThread, picture
from tests.console.page.stage import Stage, telling_program, wide_program

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "laptop": {"color_scheme": "light", "viewport": {"width": 1024, "height": 768}},
    "tablet": {"color_scheme": "dark", "viewport": {"width": 768, "height": 1024}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}
VIEWS = {
    "overview": ("#/overview", ".plot canvas"),
    "compare": ("#/compare", "#result-files"),
    "engines": ("#/engines", ".engine .k-decode"),
    "programs": ("#/programs", "tbody tr:nth-child(4)"),
    "program": ("#/program/research-7", ".gantt [data-call=write]"),
    "living": ("#/program/report-7", ".gantt [data-call]"),
}
CUT_OFF = """() => [...document.querySelectorAll("main *")]
  .filter(node => node.matches("td, th button, h1, h2, .tag, .figure, button, .legend li, .scroll, .dag"))
  .filter(node => node.checkVisibility() && node.scrollWidth > node.clientWidth + 1)
  .map(node => node.textContent.slice(0, 40))"""


@pytest.fixture
def busy(stage: Stage) -> Stage:
    for number in range(14):
        stage.call(f"chat-{number}", **{"x-autellix-program-name": "chat"})
    stage.hang(*[(f"react-{number}", "0", f"step-{number}") for number in range(5)])
    stage.hang(*[("report-7", f"section-{number}", f"draft-{number}") for number in range(6)])
    stage.hang(*[(f"program-8e518f680488b489-{number}", "0", f"call-be39-{number}") for number in range(3)])
    stage.sample_load(minutes=60)
    stage.tell_busy()
    stage.restore(telling_program(), wide_program("batch-1", 300))
    return stage


@pytest.mark.parametrize("look", LOOKS)
def test_each_view_has_its_picture(busy: Stage, browser: BrowserThread, pictures: Path, look: str) -> None:
    async def take(page: Page) -> None:
        for name, (address, shown) in VIEWS.items():
            await page.goto(f"{busy.url}/autellix/{address}")
            await page.locator(shown).first.wait_for(state="attached")
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{name} scrolls sideways by {wide} px"
            assert await page.evaluate(CUT_OFF) == [], name
            await picture(page, pictures / f"{name}-{look}.png")

    browser.visit(busy.url + "/autellix/", take, **LOOKS[look])
