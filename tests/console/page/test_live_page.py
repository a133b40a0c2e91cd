"""The live page in a browser: what it shows, how it keeps up, and what it does not do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.page.browser import BrowserThread
from tests.console.page.stage import Stage, call, ended, staged, telling_program, wide_program
from tests.gateway.snapshots import snapshot

from autellix_backend.gateway.tenancy.tenants import key_line

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ROWS = "table:visible tbody tr:not(.gap):not([hidden])"


def programs_url(stage: Stage) -> str:
    return stage.url + "/autellix/#/programs"


async def ids(page: Page) -> list[str]:
    """Return the ids of the programs whose rows are in the document."""
    found: list[str] = await page.locator(f"{ROWS}:not(.group-row) td:first-child").evaluate_all(
        "cells => cells.map(cell => cell.title)"
    )
    return found


def row_of(page: Page, program_id: str) -> Locator:
    return page.locator(ROWS).filter(has=page.locator(f'td[title="{program_id}"]'))


def group_of(page: Page, name: str) -> Locator:
    return page.locator(f"{ROWS}.group-row").filter(has=page.get_by_role("button", name=name))


async def until_text(locator: Locator, text: str) -> None:
    """Wait until an element's text holds another."""
    await locator.filter(has_text=text).first.wait_for()


def test_an_engines_load_is_shown(stage: Stage, browser: BrowserThread) -> None:
    async def look(page: Page) -> None:
        card = page.locator(".engine")
        await until_text(card, "Idle. Slots and KV memory appear with the first call.")
        stage.hang(*[(f"react-{number}", "0", f"step-{number}") for number in range(6)])
        stage.tell_busy()
        await until_text(card, "4 of 4, 2 calls waiting")
        for text in ("76 % of 32,768 tokens", "23,680 held by calls", "1,120 kept", "3,277 reserve", "31 ms"):
            await until_text(card, text)
        # Its right end is all of the memory.
        boxes = "boxes => boxes.reduce((sum, box) => sum + Number(box.getAttribute('width')), 0)"
        memory = card.locator(".meter").filter(has_text="KV memory")
        assert await memory.locator("rect:not(.trough)").evaluate_all(boxes) == pytest.approx(600, abs=1)

    browser.visit(stage.url + "/autellix/#/engines", look)


def test_the_first_view_says_what_to_do(stage: Stage, browser: BrowserThread) -> None:
    async def look(page: Page) -> None:
        await until_text(page.locator(".headline"), f"Send a request to {stage.url}/v1 and it appears here.")
        await page.get_by_role("link", name="Programs").click()
        await until_text(page.locator("main"), f"Send a request to {stage.url}/v1 and it appears here.")

    browser.visit(stage.url + "/autellix/", look)


def test_the_overview_says_what_programs_wait_for(stage: Stage, browser: BrowserThread) -> None:
    stage.call("chat-1")
    stage.hang(*[(f"react-{number}", "0", f"step-{number}") for number in range(8)])
    stage.tell_busy()

    async def look(page: Page) -> None:
        headline = page.locator(".headline")
        await until_text(
            headline, "2 programs wait for KV memory (11,200 tokens needed, 4,691 free), the longest"
        )
        await until_text(headline, "2 programs wait for a batch slot, the longest for")
        legend = page.locator(".bars .legend").first
        for text in ("2 waiting for memory", "2 waiting for a slot", "4 in the engine", "1 between calls"):
            await until_text(legend, text)
        stage.tell_busy(step=4813, free_slots=2)
        await until_text(headline, "2 programs wait for the engine, the longest for")
        await page.get_by_role("link", name="Which?").click()
        await row_of(page, "chat-1").wait_for()
        await until_text(page.locator(ROWS), "; longest ")

    browser.visit(stage.url + "/autellix/", look)


def test_the_overview_draws_the_load_of_a_range(stage: Stage, browser: BrowserThread) -> None:
    stage.call("idle")
    stage.sample_load(minutes=30)

    async def look(page: Page) -> None:
        charts = page.locator(".plot")
        await charts.nth(7).locator("canvas").wait_for()
        assert await charts.count() == 8
        colors = await charts.evaluate_all(COLORS)
        assert min(colors) > 2
        latency = page.get_by_role("region", name="Program latency")
        await until_text(latency, "p50 2.0 s, p95 2.0 s")
        await until_text(page.get_by_role("region", name="Programs ended per minute"), "12 (180 in all)")
        # Five wait in each sample.
        await until_text(page.locator(".headline"), "No program waits. The last wait was at ")
        await until_text(page.locator(".headline"), "; at most 5 programs waited at once in the last hour.")
        await page.get_by_role("button", name="1 hour").click()
        await until_text(page.get_by_role("region", name="Programs ended per minute"), "(360 in all)")
        # The legend has the value at the cursor, which the arrow keys move.
        tokens = page.get_by_role("region", name="Tokens per second")
        before = await tokens.locator(".legend").inner_text()
        # What its title says of the range stands nowhere else with another number.
        assert not re.search(r"\d", before)
        await tokens.locator(".plot").focus()
        await page.keyboard.press("ArrowLeft")
        for _ in range(40):
            await page.keyboard.press("ArrowLeft")
        assert await tokens.locator(".legend").inner_text() != before

    browser.visit(stage.url + "/autellix/", look)


def test_the_overview_after_the_load(stage: Stage, browser: BrowserThread) -> None:
    """It tells of the waits that have passed, and does not ask for a first program; nothing stands twice."""
    stage.sample_load(minutes=5)
    stage.call("last", **{"x-autellix-final": "true"})

    async def look(page: Page) -> None:
        headline = page.locator(".headline")
        await until_text(headline, "No program is open. The last wait was at ")
        await until_text(headline, "at most 5 programs waited at once in the last hour.")
        for title in ("Programs by state", "KV memory"):
            legend = page.get_by_role("region", name=title).locator(".legend")
            assert not re.search(r"\d", await legend.inner_text())
        await page.get_by_role("link", name="Programs").click()
        await until_text(page.locator("main"), "No program is open. Send a request to ")

    browser.visit(stage.url + "/autellix/", look)


COLORS = """plots => plots.map((plot) => {
  const canvas = plot.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let place = 0; place < data.length; place += 4) seen.add(data.slice(place, place + 4).join());
  return seen.size;
})"""


def test_programs_come_change_and_end_as_they_do(stage: Stage, browser: BrowserThread) -> None:
    async def look(page: Page) -> None:
        await until_text(page.locator(".status"), "Live")
        stage.call("run-1", **{"x-autellix-program-name": "react"})
        await until_text(row_of(page, "run-1"), "react run-1")
        await until_text(row_of(page, "run-1"), "between calls")
        stage.hang(("run-2", "0", "one"))
        await until_text(row_of(page, "run-2"), "in the engine")
        stage.call("run-1", **{"x-autellix-final": "true"})
        await row_of(page, "run-1").wait_for(state="detached")
        await page.get_by_role("button", name="Ended").click()
        await until_text(row_of(page, "run-1"), "react run-1")

    browser.visit(programs_url(stage), look)


def test_states_and_waits_are_those_of_the_api(stage: Stage, browser: BrowserThread) -> None:
    """Under load, as the engine runs other calls from snapshot to snapshot; within a second."""
    stage.hang(*[(f"agent-{number}", "0", f"step-{number}") for number in range(32)])

    async def look(page: Page) -> None:
        await page.get_by_role("button", name="Group by name").click()
        await page.locator(ROWS).nth(20).wait_for()
        for step, slots in enumerate((2, 20, 6, 1)):
            stage.tell_busy(step=9000 + step, slots=slots)
            await page.wait_for_function(IN_ENGINE, arg=slots)
            told = {row["program_id"]: row for row in (await api(page, "programs"))["programs"]}
            shown = await page.locator(ROWS).evaluate_all(CELLS)
            later = {row["program_id"]: row for row in (await api(page, "programs"))["programs"]}
            assert len(shown) > 20
            for program_id, state, wait in shown:
                assert state.partition(";")[0] == told[program_id]["state_text"]
                # A busy machine may take seconds from one question to the next.
                least_s, most_s = told[program_id]["wait_s"] - 3.0, later[program_id]["wait_s"] + 3.0
                assert least_s <= seconds_of(wait) <= most_s

    browser.visit(programs_url(stage), look)


# Rows outside of the view are not in the document: the first ones run.
IN_ENGINE = """slots => [...document.querySelectorAll("table .state-in_engine")]
  .filter(cell => cell.checkVisibility()).length === slots"""
# Columns without anything to show are hidden, but in the document.
CELLS = """rows => rows.map((row) => {
  const titles = [...row.closest("table").tHead.rows[0].cells].map(head => head.textContent.trim());
  const cell = title => row.cells[titles.findIndex(each => each.startsWith(title))];
  return [cell("Program").title, cell("State").textContent, cell("Wait").textContent];
})"""


async def api(page: Page, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = await page.evaluate(
        "path => fetch(`v1/${path}`).then(each => each.json())", path
    )
    return answer


def seconds_of(text: str) -> float:
    number, unit = text.removeprefix("< ").split()
    return float(number) / {"s": 1, "ms": 1000}[unit]


def test_programs_of_a_name_are_one_row(stage: Stage, browser: BrowserThread) -> None:
    for number in range(16):
        stage.call(f"chat-{number}", **{"x-autellix-program-name": "chat"})
    stage.call("alone", **{"x-autellix-program-name": "report"})
    stage.hang(("chat-0", "0", "one"))

    async def look(page: Page) -> None:
        group = group_of(page, "chat (16)")
        await until_text(group, "1 in engine, 15 between calls")
        assert await ids(page) == ["alone"]
        fold = group.get_by_role("button")
        assert await fold.get_attribute("aria-expanded") == "false"
        await fold.focus()
        await page.keyboard.press("Enter")
        await row_of(page, "chat-15").wait_for()
        assert await fold.get_attribute("aria-expanded") == "true"
        assert len(await ids(page)) == 17
        await fold.click()
        await row_of(page, "chat-15").wait_for(state="detached")
        await page.get_by_role("button", name="Group by name").click()
        await until_text(row_of(page, "chat-15"), "chat chat-15")
        assert await group.count() == 0

    browser.visit(programs_url(stage), look)


def test_rows_keep_their_places_while_their_values_change(stage: Stage, browser: BrowserThread) -> None:
    for number in range(4):
        stage.call(f"run-{number}", **{"x-autellix-program-name": f"name-{number}"})

    async def look(page: Page) -> None:
        await row_of(page, "run-3").wait_for()
        order = [f"run-{number}" for number in range(4)]
        await page.get_by_role("button", name="Done").click()
        assert await ids(page) == order
        for _ in range(3):
            stage.call("run-3")
        await until_text(row_of(page, "run-3"), "20/16")
        assert await ids(page) == order
        await page.get_by_role("button", name="Done").click()
        await page.get_by_role("button", name="Done").click()
        assert await ids(page) == ["run-3", "run-0", "run-1", "run-2"]

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
        for words, expected in (("ENGINE", ["report-7"]), ("assistant 3", ["chat-3"]), ("none such", [])):
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
        await page.get_by_role("button", name="Group by name").press("Space")
        await page.get_by_role("button", name="Program", exact=True).press("Enter")
        await row_of(page, "run-0003").wait_for()
        await page.locator(".scroll").first.focus()
        await page.keyboard.press("ArrowDown")
        assert await focused(page) == "coder run-0003"
        await page.keyboard.press("End")
        assert await focused(page) == "research run-0197"
        await page.keyboard.press("ArrowUp")
        assert await focused(page) == "research run-0193"
        await page.keyboard.press("Home")
        assert await focused(page) == "coder run-0003"
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="coder").wait_for()
        assert await page.evaluate("document.activeElement.id") == "main"

    browser.visit(programs_url(stage), look)


async def focused(page: Page) -> str:
    text: str = await page.evaluate("document.activeElement.textContent")
    return text


def test_two_thousand_programs_are_few_rows(stage: Stage, browser: BrowserThread) -> None:
    stage.fill(2000)

    async def look(page: Page) -> None:
        await until_text(page.locator("#programs-count"), "2,000 programs")
        assert await page.locator(ROWS).count() == 4
        await page.get_by_role("button", name="Group by name").click()
        await page.get_by_role("button", name="Program", exact=True).click()
        # By name: the coders first.
        await row_of(page, "run-0003").wait_for()
        assert 10 < len(await ids(page)) < 80
        table = page.get_by_role("table", name="Living programs")
        assert await table.get_attribute("aria-rowcount") == "2001"
        view = page.locator(".scroll").first
        await view.evaluate("view => { view.scrollTop = view.scrollHeight; }")
        last = row_of(page, "run-1997")
        await last.wait_for()
        assert await last.get_attribute("aria-rowindex") == "2001"
        assert await page.locator("tbody tr").count() < 100

    browser.visit(programs_url(stage), look)


def test_slow_answers_do_not_stop_the_page(stage: Stage, browser: BrowserThread) -> None:
    """It asks less often, but at least every five seconds."""

    async def look(page: Page) -> None:
        assert await page.evaluate(PAUSES, [20, 300, 4000]) == [1000, 3000, 5000]

    browser.visit(stage.url + "/autellix/#/compare", look)


PAUSES = """async (answersMs) => {
  const { poll } = await import(new URL("polling.js", document.querySelector("script[type=module]").src));
  const pauses = [];
  let clockMs = 0;
  performance.now = () => clockMs;
  for (const answerMs of answersMs) {
    const view = { isClosed: false, refresh: async () => { clockMs += answerMs; return true; } };
    window.setTimeout = (resume, pauseMs) => { pauses.push(pauseMs); view.isClosed = true; resume(); };
    await poll(view, 1000);
  }
  return pauses;
}"""


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
        await until_text(page.locator(".why"), "9 calls in 84.0 s: 8.5 s waiting for memory")
        await page.locator(".gantt [data-call=check] .hit").click()
        await until_text(page.locator("tr.chosen"), "check")
        assert await page.locator("tr.chosen td.bad").get_attribute("title") is not None
        await until_text(page.locator(".detail"), "6.0 s waiting for KV memory")
        await until_text(page.locator(".detail"), "100 were: the request's tools differ")

    browser.visit(stage.url + "/autellix/#/program/research-7", look)


def test_all_that_is_drawn_is_in_a_legend(stage: Stage, browser: BrowserThread) -> None:
    """The time from a call's end in the engine to its answer, too."""
    late = call("late", 2.0, 4.0, thread_id="1", tools=(("fetch", 3.0),), runs=((0.5, 1.5),), wait_s=0.5)
    stage.restore(telling_program(), ended("late-1", call("first", 0.0, 1.0, thread_id="1"), late))

    async def look(page: Page) -> None:
        for program_id in ("research-7", "late-1"):
            await page.goto(f"{stage.url}/autellix/#/program/{program_id}")
            await until_text(page.locator(".title-row"), program_id)
            # A page that has drawn nothing yet has the id as its heading.
            await page.get_by_role("heading", name="research", exact=True).wait_for()
            drawn, explained = await page.evaluate(DRAWN_AND_EXPLAINED)
            assert len(set(drawn)) > 3
            assert set(drawn) <= set(explained)
        bars = page.locator(".gantt [data-call=late]")
        assert await bars.locator(".k-answer").count() == 1
        tools = await bars.locator(".k-tools").bounding_box()
        first = await page.locator(".gantt [data-call=first] .hit").bounding_box()
        assert tools is not None
        assert first is not None
        # A tool of 3 s began 1 s before the call that it follows was settled.
        assert tools["x"] >= first["x"] + first["width"] - 1

    browser.visit(stage.url + "/autellix/", look)


DRAWN_AND_EXPLAINED = """() => {
  const kindOf = (node) => [...node.classList].find((each) => each.startsWith("k-"));
  const kinds = (selector) => [...document.querySelectorAll(selector)].map(kindOf).filter(Boolean);
  return [kinds("main svg rect"), kinds(".legend i")];
}"""


def test_ids_and_tools_are_told_apart(stage: Stage, browser: BrowserThread) -> None:
    """Ids of clients differ at their ends only."""
    ids_of_calls = [f"call-be397b2043f14be2-{number}" for number in range(4)]
    calls = [
        call(
            each,
            float(number),
            number + 0.5,
            parents=tuple(ids_of_calls[:number][-1:]),
            tools=(("calc", 0.25),),
        )
        for number, each in enumerate(ids_of_calls)
    ]
    stage.restore(
        ended("program-8e518f680488b489-563", *calls), ended("program-8e518f680488b489-564", *calls)
    )

    async def look(page: Page) -> None:
        await page.get_by_role("button", name="Ended").click()
        links = page.locator(f"{ROWS} a:visible")
        await links.nth(1).wait_for()
        assert sorted(await links.all_inner_texts()) == ["…488b489-563", "…488b489-564"]
        await page.locator("td[title='program-8e518f680488b489-563'] a").click()
        await until_text(page.locator(".title-row"), "research")
        await until_text(page.locator(".title-row"), "program-8e518f680488b489-563")
        labels = await page.locator(".dag text").all_text_contents()
        assert labels == [f"…043f14be2-{number}" for number in range(4)]
        await until_text(page.get_by_role("table", name="Calls"), "calc 0.25 s")

    browser.visit(programs_url(stage), look)


def test_levels_and_ratios_are_shown_where_the_policy_has_them(browser: BrowserThread) -> None:
    for policy, expected in (("boost", 0), ("plas", 2)):
        with staged(policy=policy) as stage:
            stage.call("run-1")

            async def look(page: Page, expected: int = expected) -> None:
                await row_of(page, "run-1").wait_for()
                heads = page.locator("table:visible th:visible").filter(has_text=LEVELS)
                assert await heads.count() == expected

            browser.visit(programs_url(stage), look)


LEVELS = re.compile("^(Level|Wait / run)")


SEARCH_2 = ("waiting", "prefill", "decode", "preempted", "decode", "preempted", "decode")


def test_a_running_program_over_time(stage: Stage, browser: BrowserThread) -> None:
    stage.hang(("run-1", "0", "first"))

    async def look(page: Page) -> None:
        await page.locator(".gantt [data-call=first] .k-engine").wait_for()
        assert await page.locator(".dag .node.open").count() == 1
        stage.hang(("run-1", "branch", "second"))
        await page.locator(".gantt [data-call=second]").wait_for(state="attached")
        await until_text(page.locator(".tag"), "in the engine")
        await until_text(page.locator(".why"), "first, thread 0, in the engine")

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
        await page.get_by_role("link", name="react.py").click()
        await page.get_by_role("heading", name="implicit: react.py").wait_for()
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
        assert (await link.inner_text()).startswith(name[:20])
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


def test_a_tenants_first_view_is_its_programs(tenants: Stage, browser: BrowserThread) -> None:
    tenants.call("mine", "one")
    tenants.call("theirs", "other")

    async def look(page: Page) -> None:
        await sign_in(page, "one")
        await row_of(page, "mine").wait_for()
        await page.get_by_role("link", name="Overview").click()
        await until_text(page.locator("main"), "The overview is for operators")
        assert await page.locator(".headline:visible").count() == 0

    browser.visit(tenants.url + "/autellix/", look, expected_problems=("401", "403"))


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
        await page.locator("td[title='one/mine'] a").click()
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
        await until_text(page.get_by_role("alert"), "bad.json is neither a result")
        files = []
        for name, factor in (("fcfs", 2.0), ("boost", 1.0)):
            path = tmp_path / f"{name}.json"
            path.write_text(result_text(factor))
            files.append(path)
        await page.locator("#result-files").set_input_files(files)
        verdict = f"boost against fcfs: mean latency 0.50{TIMES}; 40 faster, 0 slower, 0 within 5 %."
        await until_text(page.locator(".headline"), verdict)
        await page.locator("canvas").nth(1).wait_for()
        assert min(await page.locator(".plot").evaluate_all(COLORS)) > 2
        await until_text(page.get_by_role("table", name="Statistics"), f"(0.50{TIMES})")
        await page.get_by_role("button", name="Clear").click()
        assert await page.locator("canvas").count() == 0

    browser.visit(stage.url + "/autellix/#/compare", look)


TIMES = "\N{MULTIPLICATION SIGN}"


def result_text(factor: float) -> str:
    outcomes = [
        {"program": f"p-{number}", "source": "chat", "latency_s": factor * (1 + number), "output_tokens": 5}
        for number in range(40)
    ]
    return json.dumps({"kind": "autellix-replay", "version": 2, "outcomes": outcomes})


def test_recent_programs_are_replayed_under_other_policies(stage: Stage, browser: BrowserThread) -> None:
    for number in range(3):
        headers = {"x-autellix-program-name": "chat", "x-autellix-final": "true"}
        stage.call(f"run-{number}", **headers)

    async def look(page: Page) -> None:
        replay = page.get_by_role("button", name="Replay the last 10 minutes")
        await replay.click()
        await until_text(page.get_by_role("alert"), "no engine reports its slots")
        stage.tell(snapshot(step=1, slots=1, kv_total_blocks=10_000))
        await replay.click()
        await until_text(page.get_by_role("status"), "Simulator error on the measured run:")
        # Its error depends on how long the machine took; here are two that are known.
        answer = await (await page.request.post(stage.url + "/autellix/v1/replay")).json()
        error = 0.9

        async def fulfil(route: Route) -> None:
            await route.fulfill(json={**answer, "simulated_over_measured": error})

        await page.route("**/autellix/v1/replay*", fulfil)
        await replay.click()
        await until_text(page.locator(".headline"), "fcfs (simulated) against boost (measured): mean latency")
        await until_text(page.locator(".headline"), "plas (simulated) against boost (measured): mean latency")
        await until_text(page.get_by_role("status"), "policies. Simulator error on the measured run: -10 %.")
        error = 1.16
        await replay.click()
        await until_text(page.get_by_role("status"), "measured run: +16 %, above 15 %: no comparison.")
        assert await page.locator(".headline").count() == 0

    browser.visit(stage.url + "/autellix/#/compare", look, expected_problems=("409",))


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
