"""A report in a browser, from a file: what it shows, and what hostile names in it do not do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.browser import BrowserThread, picture
from tests.page.traces import recorded_trace

from autellix_backend.cli.main import main
from autellix_lab.workload.trace import CallTrace, ProgramTrace
from autellix_lab.workload.trace_files import write_traces

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\u202egnp.exe",
    "a" * 4000,
    "'\"`${alert(1)}{{7*7}}",
)


def write_report(folder: Path, programs: list[ProgramTrace], *options: str) -> str:
    trace, page = folder / "trace.jsonl", folder / "report.html"
    write_traces(trace, programs)
    assert main(["report", str(trace), "-o", str(page), *options]) == 0
    return page.as_uri()


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_a_comparison_of_simulated_policies(
    browser: BrowserThread, tmp_path: Path, pictures: Path, look: str
) -> None:
    url = write_report(
        tmp_path,
        recorded_trace(80),
        "--policies",
        "fcfs,boost",
        "--max-num-seqs",
        "4",
        "--title",
        "Chats and trees",
    )
    context: dict[str, Any] = {"color_scheme": "dark" if look == "dark" else "light"}
    if look == "narrow":
        context["viewport"] = {"width": 390, "height": 844}

    async def look_at(page: Page) -> None:
        await page.goto(f"{url}#/compare")
        await page.get_by_role("heading", name="Who gained and lost: boost against fcfs").wait_for()
        assert await page.locator("p", has_text="Simulated, not measured").count() == 1
        assert await page.locator("polyline.curve").count() == 2
        text = await page.locator("section > p").inner_text()
        assert text.startswith("Of 80 programs, ")
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"it scrolls sideways by {wide} px"
        await picture(page, pictures / f"compare-{look}.png")

    browser.visit(url, look_at, **context)


def test_recorded_programs_have_their_table_and_their_calls(browser: BrowserThread, tmp_path: Path) -> None:
    url = write_report(tmp_path, recorded_trace(30))

    async def look_at(page: Page) -> None:
        await page.get_by_text("30 programs").wait_for()
        await page.get_by_role("link", name="program-3", exact=True).click()
        await page.get_by_role("heading", name="program-3").wait_for()
        assert await page.locator(".gantt [data-call]").count() == len(recorded_trace(30)[3].calls)
        assert await page.get_by_role("link", name="Engines").count() == 0

    browser.visit(url, look_at)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_texts(browser: BrowserThread, tmp_path: Path, name: str) -> None:
    call = CallTrace(
        id=0, parents=(), thread=name, prefill_tokens=4, decode_tokens=2, start_s=0.0, latency_s=2.0
    )
    programs = [ProgramTrace(source=name, program_id=name, arrival_s=1.0, calls=(call,))]
    url = write_report(tmp_path, programs, "--title", name)

    async def look_at(page: Page) -> None:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        link = page.locator("tbody tr:not(.gap) a").first
        await link.wait_for()
        assert await link.inner_text() == name
        await link.click()
        heading = page.get_by_role("heading", level=1)
        await page.locator(".gantt [data-call]").wait_for(state="attached")
        assert name in await heading.inner_text()
        assert await page.locator("main img, main script, main iframe").count() == 0
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"it scrolls sideways by {wide} px"
        assert dialogs == []

    browser.visit(url, look_at)
