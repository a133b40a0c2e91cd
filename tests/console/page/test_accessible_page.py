"""The page for people who do not see it, or not well: names, headers, live regions, order and contrast."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.page.browser import BrowserThread
from tests.console.page.stage import Stage, staged, telling_program

from autellix_backend.gateway.tenancy.tenants import key_line

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

VIEWS = {
    "overview": ("#/overview", ".plot canvas"),
    "engines": ("#/engines", ".engine .k-decode"),
    "programs": ("#/programs", "tbody tr a"),
    "groups": ("#/programs", ".fold"),
    "ended": ("#/programs", "button"),
    "program": ("#/program/research-7", ".gantt [data-call=write]"),
    "living": ("#/program/report-7", ".gantt [data-call]"),
    "unknown": ("#/program/nobody", "p.bad:not(:empty)"),
    "compare": ("#/compare", "#result-files"),
}
CONTROLS = {"button", "link", "searchbox", "textbox", "checkbox", "combobox", "slider", "tab"}
NAMED = CONTROLS | {"region", "table", "image", "img", "navigation", "group", "heading", "columnheader"}
LEAST_CONTRAST = 4.5

CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const light = ([red, green, blue]) => [red, green, blue].map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const groundOf = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const ground = rgba(getComputedStyle(each).backgroundColor);
      if (ground[3] > 0.99) return ground;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    const box = node.getBoundingClientRect();
    if (!text.data.trim() || !box.width || !node.checkVisibility()) continue;
    if (node.closest("title, noscript, :disabled")) continue;
    const style = getComputedStyle(node);
    const ink = light(rgba(node.closest("svg") ? style.fill : style.color));
    const ground = light(groundOf(node));
    const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    found.push([ratio, text.data.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture
def full(stage: Stage) -> Stage:
    for number in range(2):
        stage.call(f"chat-{number}", **{"x-autellix-program-name": "chat"})
    stage.sample_load(minutes=15)
    stage.hang(*[("report-7", f"section-{number}", f"draft-{number}") for number in range(6)])
    stage.tell_busy()
    stage.restore(telling_program())
    return stage


async def show(page: Page, view: str) -> None:
    address, shown = VIEWS[view]
    await page.goto(page.url.partition("#")[0] + address)
    await page.locator(shown).first.wait_for(state="attached")
    if view == "ended":
        await page.get_by_role("button", name="Ended").click()
        await page.locator("td[title='research-7'] a").wait_for()


async def accessible_nodes(page: Page) -> list[dict[str, Any]]:
    """Return what a screen reader is given: each with its role, name and properties."""
    session = await page.context.new_cdp_session(page)
    tree = await session.send("Accessibility.getFullAXTree")
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", "").strip(),
            **{each["name"]: each["value"].get("value") for each in node.get("properties", ())},
        }
        for node in tree["nodes"]
        if not node["ignored"]
    ]


def test_every_view_is_told_to_those_who_do_not_see_it(full: Stage, browser: BrowserThread) -> None:
    """Names, headings in order, changes told politely, and the page's own tab order."""

    async def look(page: Page) -> None:
        for view in VIEWS:
            await show(page, view)
            nodes = await accessible_nodes(page)
            assert [node for node in nodes if node["role"] in NAMED and not node["name"]] == [], view
            headings = [node["level"] for node in nodes if node["role"] == "heading"]
            assert headings[0] == headings.count(1) == 1, view
            assert all(after - before <= 1 for before, after in pairwise(headings)), view
            # Whether the page is live, and what went wrong; no table and no number.
            live = [node for node in nodes if node.get("live") not in (None, "off")]
            told = {(node["role"], node["live"]) for node in live}
            assert told <= {("status", "polite"), ("alert", "assertive")}, view
            assert await page.locator("[tabindex]:not([tabindex='0'], [tabindex='-1'])").count() == 0, view

    browser.visit(full.url + "/autellix/", look, expected_problems=("404",))


def test_every_column_has_a_header_and_rows_are_counted(full: Stage, browser: BrowserThread) -> None:
    async def look(page: Page) -> None:
        for view in ("programs", "ended", "program"):
            await show(page, view)
            for table in await page.locator("table:visible").all():
                columns = await table.locator("thead th[scope=col]:visible").count()
                row = table.locator("tbody tr:not(.gap):not([hidden])").first
                assert columns == await row.locator("td:visible").count()
                assert int(await table.get_attribute("aria-rowcount") or 0) > 1

    browser.visit(full.url + "/autellix/", look)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(full: Stage, browser: BrowserThread, scheme: str) -> None:
    async def look(page: Page) -> None:
        for view in VIEWS:
            await show(page, view)
            contrasts = await page.evaluate(CONTRASTS)
            assert len(contrasts) > 3
            assert [each for each in contrasts if each[0] < LEAST_CONTRAST] == [], view

    browser.visit(full.url + "/autellix/", look, expected_problems=("404",), color_scheme=scheme)


def test_the_sign_in_has_its_names(browser: BrowserThread, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[[tenant]]\nname = "one"\nkeys = ["{key_line("one")}"]\n')

    async def look(page: Page) -> None:
        await page.get_by_label("API key").wait_for()
        nodes = await accessible_nodes(page)
        assert [node for node in nodes if node["role"] in NAMED and not node["name"]] == []
        assert [each for each in await page.evaluate(CONTRASTS) if each[0] < LEAST_CONTRAST] == []

    with staged(tenants_file=tenants) as locked:
        browser.visit(locked.url + "/autellix/", look, expected_problems=("401",))
