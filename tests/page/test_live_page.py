"""The live page in a browser: what it shows, how it keeps up, and what it does not do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.page.browser import BrowserThread
from tests.page.stage import Stage, staged, telling_program, wide_program

from autellix_backend.gateway.tenancy.tenants import key_line

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ROWS = "table:visible tbody tr:not(.gap):not([hidden])"


def programs_url(stage: Stage) -> str:
    return stage.url + "/autellix/#/programs"


async def ids(page: Page) -> list[str]:
    """Return the ids of the rows that are in the document."""
    found: list[str] = await page.locator(f"{ROWS} a").all_inner_texts()
    return found


def row_of(page: Page, program_id: str) -> Locator:
    return page.locator(ROWS).filter(has=page.get_by_role("link", name=program_id, exact=True))


async def until_text(locator: Locator, text: str) -> None:
    """Wait until an element's text holds another."""
    await locator.filter(has_text=text).first.wait_for()


def test_an_engines_load_is_shown(stage: Stage, browser: BrowserThread) -> None:
    stage.hang(*[(f"react-{number}", "0", f"step-{number}") for number in range(6)])
    stage.tell_busy()

    async def look(page: Page) -> None:
        card = page.locator(".engine")
        await until_text(card, "4 of 4, 2 waiting")
        for text in ("72 % of 32,768 tokens", "24,800 of 29,491 tokens", "5 inactive", "31 ms"):
            await until_text(card, text)

    browser.visit(stage.url + "/autellix/", look)


def test_programs_come_change_and_end_as_they_do(stage: Stage, browser: BrowserThread) -> None:
    async def look(page: Page) -> None:
        await until_text(page.locator(".status"), "Live")
        stage.call("run-1", **{"x-autellix-program-name": "react"})
        await until_text(row_of(page, "run-1"), "react")
        stage.hang(("run-2", "0", "one"))
        await until_text(row_of(page, "run-2"), "running")
        stage.call("run-1", **{"x-autellix-final": "true"})
        await row_of(page, "run-1").wait_for(state="detached")
        await page.get_by_role("button", name="Ended").click()
        await until_text(row_of(page, "run-1"), "react")

    browser.visit(programs_url(stage), look)


def test_a_column_sorts_both_ways(stage: Stage, browser: BrowserThread) -> None:
    for calls, program_id in enumerate(("chat-10", "chat-9", "chat-2"), start=1):
        for _ in range(calls):
            stage.call(program_id)

    async def look(page: Page) -> None:
        await row_of(page, "chat-2").wait_for()
        head = page.get_by_role("columnheader", name="Program", exact=True)
        await head.get_by_role("button").click()
        assert await head.get_attribute("aria-sort") == "ascending"
        assert await ids(page) == ["chat-2", "chat-9", "chat-10"]
        await page.get_by_role("button", name="Done").click()
        assert await ids(page) == ["chat-2", "chat-9", "chat-10"]
        await page.get_by_role("button", name="Done").click()
        assert await ids(page) == ["chat-10", "chat-9", "chat-2"]

    browser.visit(programs_url(stage), look)


def test_a_search_finds_ids_names_and_states(stage: Stage, browser: BrowserThread) -> None:
    for number in range(5):
        stage.call(f"chat-{number}", **{"x-autellix-program-name": "assistant"})
    stage.hang(("report-7", "0", "one"))

    async def look(page: Page) -> None:
        await row_of(page, "report-7").wait_for()
        search = page.get_by_role("searchbox")
        for words, expected in (("RUNNING", ["report-7"]), ("assistant 3", ["chat-3"]), ("none such", [])):
            await search.fill(words)
            assert await ids(page) == expected
            await until_text(page.locator("#programs-count"), f"{len(expected)} of 6 programs")

    browser.visit(programs_url(stage), look)


def test_all_is_reached_by_the_keyboard(stage: Stage, browser: BrowserThread) -> None:
    stage.fill(200)

    async def look(page: Page) -> None:
        await until_text(page.locator("#programs-count"), "200 programs")
        await page.keyboard.press("Tab")
        assert await focused(page) == "Skip to the content"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await page.locator(".scroll").first.focus()
        await page.keyboard.press("ArrowDown")
        assert await focused(page) == "run-0000"
        await page.keyboard.press("End")
        assert await focused(page) == "run-0199"
        await page.keyboard.press("ArrowUp")
        assert await focused(page) == "run-0198"
        await page.keyboard.press("Home")
        assert await focused(page) == "run-0000"
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="run-0000").wait_for()
        assert await page.evaluate("document.activeElement.id") == "main"

    browser.visit(programs_url(stage), look)


async def focused(page: Page) -> str:
    text: str = await page.evaluate("document.activeElement.textContent")
    return text


def test_two_thousand_programs_are_few_rows(stage: Stage, browser: BrowserThread) -> None:
    stage.fill(2000)

    async def look(page: Page) -> None:
        await until_text(page.locator("#programs-count"), "2,000 programs")
        assert 10 < len(await ids(page)) < 80
        table = page.get_by_role("table", name="Programs that run")
        assert await table.get_attribute("aria-rowcount") == "2001"
        view = page.locator(".scroll").first
        await view.evaluate("view => { view.scrollTop = view.scrollHeight; }")
        await row_of(page, "run-1999").wait_for()
        last = row_of(page, "run-1999")
        assert await last.get_attribute("aria-rowindex") == "2001"
        assert await page.locator("tbody tr").count() < 100

    browser.visit(programs_url(stage), look)


def test_an_ended_program_over_time(stage: Stage, browser: BrowserThread) -> None:
    stage.restore(telling_program())

    async def look(page: Page) -> None:
        await page.locator(".gantt [data-call=write]").wait_for()
        kinds = await page.locator(".gantt [data-call=search-2] rect").evaluate_all(
            "boxes => boxes.map(box => box.classList[0]).filter(kind => kind?.startsWith('k-'))"
        )
        assert kinds == [f"k-{kind}" for kind in ("tools", *SEARCH_2)]
        assert await page.locator(".gantt .path-box").count() == 4
        assert await page.locator(".gantt path.path-line").count() == 3
        assert await page.locator(".dag .node").count() == 9
        assert await page.locator(".dag .node.on-path").count() == 4
        assert await page.locator(".dag .node.failed").count() == 1
        await until_text(page.locator(".why"), "It took 84.0 s for 9 calls: 8.5 s waiting for KV memory")
        await page.locator(".gantt [data-call=check] .hit").click()
        await until_text(page.locator("tr.chosen"), "check")
        await until_text(page.locator(".detail"), "6.00 s waiting for KV memory, inactive")

    browser.visit(stage.url + "/autellix/#/program/research-7", look)


SEARCH_2 = ("waiting", "prefill", "decode", "preempted", "decode", "preempted", "decode")


def test_a_running_program_over_time(stage: Stage, browser: BrowserThread) -> None:
    stage.hang(("run-1", "0", "first"))

    async def look(page: Page) -> None:
        await page.locator(".gantt [data-call=first] .k-engine").wait_for()
        assert await page.locator(".dag .node.open").count() == 1
        stage.hang(("run-1", "branch", "second"))
        await page.locator(".gantt [data-call=second]").wait_for(state="attached")
        await until_text(page.locator(".tag"), "running")
        await until_text(page.locator(".why"), "first (thread 0) is")

    browser.visit(stage.url + "/autellix/#/program/run-1", look)


def test_a_wide_program_is_drawn_up_to_a_bound(stage: Stage, browser: BrowserThread) -> None:
    stage.restore(wide_program("batch", 3000))

    async def look(page: Page) -> None:
        await until_text(page.locator(".tools-row"), "3,000 calls in 20 threads")
        assert await page.locator(".gantt [data-call]").count() == 2000
        assert await page.locator(".dag .node").count() == 400
        table = page.get_by_role("table", name="Calls")
        assert await table.get_attribute("aria-rowcount") == "3001"

    browser.visit(stage.url + "/autellix/#/program/batch", look)


def test_threads_have_names_and_implicit_programs_say_so(stage: Stage, browser: BrowserThread) -> None:
    named = {"x-autellix-program-name": "react.py", "x-autellix-flags": "implicit"}
    stage.call("run-1", **named, **{"x-autellix-thread-id": "1", "x-autellix-thread-name": "planner"})
    stage.call("run-1", **named, **{"x-autellix-thread-id": "2"})

    async def look(page: Page) -> None:
        await until_text(row_of(page, "run-1"), "implicit: react.py")
        await page.get_by_role("link", name="run-1", exact=True).click()
        await until_text(page.locator(".facts"), "implicit: react.py")
        await until_text(page.locator(".why"), "It is implicit")
        lanes = await page.locator(".gantt-labels text").all_text_contents()
        assert [text.strip() for text in lanes] == ["Thread", "planner (1)planner", "22"]
        await until_text(page.get_by_role("table", name="Calls"), "planner (1)")

    browser.visit(programs_url(stage), look)


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "x" * 256,
    "'\"`${alert(1)}&amp;%2F..",
    "a/../../v1/engines?x=1#y",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_texts(stage: Stage, browser: BrowserThread, name: str) -> None:
    headers = {
        "x-autellix-program-name": name,
        "x-autellix-thread-id": name,
        "x-autellix-thread-name": name,
        "x-autellix-call-id": name[:200],
    }
    stage.call(name, **headers)

    async def look(page: Page) -> None:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        link = page.locator(f"{ROWS} a").first
        await link.wait_for()
        assert await link.inner_text() == name
        await link.click()
        await page.locator(".gantt [data-call]").wait_for()
        assert name in await page.get_by_role("heading", level=1).inner_text()
        assert await page.locator("main img, main script, main iframe").count() == 0
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert dialogs == []

    browser.visit(programs_url(stage), look)


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Stage]:
    path = tmp_path / "tenants.toml"
    path.write_text(
        "".join(f'[[tenant]]\nname = "{name}"\nkeys = ["{key_line(name)}"]\n' for name in ("one", "other"))
        + f'[[tenant]]\nname = "boss"\nadmin = true\nkeys = ["{key_line("boss")}"]\n'
    )
    with staged(tenants_file=path) as found:
        yield found


async def sign_in(page: Page, key: str) -> None:
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()


NEEDS_KEY = ("401",)
"""The browser's own remark on an answer."""


def test_a_tenant_signs_in_and_sees_its_own(tenants: Stage, browser: BrowserThread) -> None:
    tenants.call("mine", "one")
    tenants.call("theirs", "other")

    async def look(page: Page) -> None:
        await sign_in(page, "wrong")
        await until_text(page.get_by_role("alert"), "API key")
        await sign_in(page, "one")
        await row_of(page, "mine").wait_for()
        assert await ids(page) == ["mine"]
        tenants.call("theirs-2", "other")
        tenants.call("mine-2", "one")
        await row_of(page, "mine-2").wait_for()
        assert sorted(await ids(page)) == ["mine", "mine-2"]
        await page.goto(tenants.url + "/autellix/#/program/theirs")
        await until_text(page.locator("p.bad"), "There is no such program")
        await page.goto(tenants.url + "/autellix/#/engines")
        await until_text(page.locator("main"), "Engines are for operators")
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_label("API key").wait_for()
        assert await page.evaluate("sessionStorage.length") == 0
        assert await page.evaluate("localStorage.length + document.cookie.length") == 0

    browser.visit(programs_url(tenants), look, expected_problems=("401", "403", "404"))


def test_an_admin_sees_all_and_the_engines(tenants: Stage, browser: BrowserThread) -> None:
    tenants.call("mine", "one")

    async def look(page: Page) -> None:
        await sign_in(page, "boss")
        await row_of(page, "one/mine").wait_for()
        await page.get_by_role("link", name="one/mine").click()
        await page.locator(".gantt [data-call]").wait_for()
        await page.get_by_role("link", name="Engines").click()
        await page.locator(".engine").wait_for()

    browser.visit(programs_url(tenants), look, expected_problems=NEEDS_KEY)


def test_no_site_frames_the_page(stage: Stage, browser: BrowserThread) -> None:
    frames = "".join(
        f"<iframe src='{host}/autellix/'></iframe>"
        for host in (stage.url, stage.url.replace("127.0.0.1", "localhost"))
    )

    async def look(page: Page) -> None:
        await page.route("**/other.html", lambda route: route.fulfill(content_type="text/html", body=frames))
        async with page.expect_event("framenavigated", lambda frame: frame.parent_frame is not None):
            await page.goto(stage.url + "/other.html")
        for frame in page.frames[1:]:
            await frame.wait_for_load_state()
            assert await frame.locator("#nav").count() == 0

    browser.visit(stage.url + "/autellix/", look, expected_problems=("frame", "403"), others=("localhost",))


def test_files_are_compared_in_the_browser(stage: Stage, browser: BrowserThread, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"kind": "something else"}')

    async def look(page: Page) -> None:
        await page.locator("#result-files").set_input_files([bad])
        await until_text(page.get_by_role("alert"), "bad.json: is no result")
        files = []
        for name, factor in (("fcfs", 2.0), ("boost", 1.0)):
            path = tmp_path / f"{name}.json"
            path.write_text(result_text(factor))
            files.append(path)
        await page.locator("#result-files").set_input_files(files)
        await until_text(
            page.locator("main"), "Of 40 programs, 40 took less time by over 5 %, 0 more, 0 about the same."
        )
        assert await page.locator("polyline.curve").count() == 2
        await page.get_by_role("button", name="Clear").click()
        assert await page.locator("polyline.curve").count() == 0

    browser.visit(stage.url + "/autellix/#/compare", look)


def result_text(factor: float) -> str:
    outcomes = [
        {"program": f"p-{number}", "source": "chat", "latency_s": factor * (1 + number), "output_tokens": 5}
        for number in range(40)
    ]
    return json.dumps({"kind": "autellix-replay", "version": 2, "outcomes": outcomes})


def test_a_gateway_that_stops_is_told(browser: BrowserThread) -> None:
    with staged() as stage:

        async def look(page: Page) -> None:
            await until_text(page.locator(".status"), "Live")
            await page.context.set_offline(True)
            await until_text(page.locator(".status.bad"), "does not answer")
            await page.context.set_offline(False)
            stage.call("back")
            await row_of(page, "back").wait_for()

        browser.visit(programs_url(stage), look, expected_problems=("ERR_INTERNET_DISCONNECTED", "network"))
