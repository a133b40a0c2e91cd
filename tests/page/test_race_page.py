"""The page of `autellix demo --watch` in a browser: two policies play the same programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lab.demo.race.race_turns import PROGRAMS, results, turn
from tests.page.browser import BrowserThread, picture

from autellix_lab.demo.race.race import Race
from autellix_lab.demo.race.server import served

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}


@pytest.mark.parametrize("look", LOOKS)
def test_two_policies_race(browser: BrowserThread, pictures: Path, look: str) -> None:
    race = Race(("fcfs", "boost"))

    async def watch(page: Page) -> None:
        await page.get_by_text("The engines start.").wait_for()
        take = race.begin(turn("fcfs"))
        await column(page, "fcfs").get_by_text("plays", exact=True).wait_for()
        await column(page, "boost").get_by_text("waits for its turn").wait_for()
        for result in results(s_per_call=2.0):
            take(result)
        await column(page, "fcfs").get_by_text("3 of 3", exact=True).wait_for()
        take = race.begin(turn("boost"))
        await column(page, "fcfs").get_by_text("has played; shown at the same second").wait_for()
        for result in results(s_per_call=1.0, programs=2):
            take(result)
        await column(page, "boost").get_by_text("2 of 3", exact=True).wait_for()
        assert await column(page, "boost").locator("rect.race-done").count() == 2
        assert await page.get_by_role("img", name="boost: 2 of 3 programs finished").count() == 1
        link = page.get_by_role("link", name="The live page of boost's gateway")
        assert await link.get_attribute("href") == "http://127.0.0.1:1/boost/autellix/"
        race.end()
        await page.get_by_text("The demo has ended").wait_for()
        await column(page, "fcfs").get_by_text("3 of 3", exact=True).wait_for()
        row = page.get_by_role("row", name="round 1, saturation")
        assert (await row.inner_text()).split("\t")[1:] == latencies()
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"it scrolls sideways by {wide} px"
        await picture(page, pictures / f"race-{look}.png")

    with served(race) as url:
        browser.visit(url, watch, **LOOKS[look])


def column(page: Page, policy: str) -> Any:
    return page.locator(f"section[data-policy={policy}]")


def latencies() -> list[str]:
    """Return the row of means, as the page writes them."""
    lengths = [len(program.calls) for program in PROGRAMS]
    means = (2.0 * sum(lengths) / 3, sum(lengths[:2]) / 2)
    return [*(f"{mean:.2f} s" if mean < 9.995 else f"{mean:.1f} s" for mean in means),
            f"{means[1] / means[0]:.2f}\N{MULTIPLICATION SIGN}"]  # fmt: skip


def test_a_demo_that_stops_is_told(browser: BrowserThread) -> None:
    async def watch(page: Page) -> None:
        await page.locator(".status", has_text="Live").wait_for()
        await page.context.set_offline(True)
        await page.locator(".status.bad", has_text="does not answer").wait_for()

    with served(Race(("fcfs", "boost"))) as url:
        browser.visit(url, watch, expected_problems=("ERR_INTERNET_DISCONNECTED",))
