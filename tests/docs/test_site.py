"""The documentation site builds strictly, needs no other host, and shows no raw Markdown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

pytest.importorskip("material", reason="mkdocs-material is not installed here")

# The build takes seconds; on a machine with much else to do, minutes.
pytestmark = pytest.mark.timeout(400)

FOREIGN = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]+\"")
# What GitHub shows as a list or a table without a blank line before it, and the site as text.
RAW = re.compile(r"<p>[^<]*\n(?:[-*] |\d\. )|<p>\||<p>[^<]*```|\]\([^)]*\.md")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the site by path; each lost link, anchor or page fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.html")}


def article(html: str) -> str:
    return html.partition("<article")[2].partition("</article>")[0]


def test_each_page_of_the_documentation_is_on_the_site(pages: dict[str, str]) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {re.sub(r"\bREADME$", "index", str(source)) + ".html" for source in sources}
    assert built <= set(pages)


def test_no_page_loads_anything_from_another_host(pages: dict[str, str]) -> None:
    assert {path: found for path, html in pages.items() if (found := FOREIGN.findall(html))} == {}


def test_no_page_shows_raw_markdown(pages: dict[str, str]) -> None:
    raw = {path: found[:3] for path, html in pages.items() if (found := RAW.findall(article(html)))}
    assert raw == {}


def test_links_out_of_the_documentation_go_to_the_repository(pages: dict[str, str]) -> None:
    links = re.findall(r'href="(https://github.com/autellix/autellix/blob/main/[^"#]+)', pages["index.html"])
    targets = {link.removeprefix("https://github.com/autellix/autellix/blob/main/") for link in links}
    assert {"SECURITY.md", "examples/README.md"} <= targets
    assert all((Path(ROOT) / target).exists() for target in targets)
