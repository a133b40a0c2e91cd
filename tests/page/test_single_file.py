"""The page as one file: what is in it, and that nothing in the data gets out of its place."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from autellix_backend.page.assets import INDEX, assets
from autellix_backend.page.single_file import bundle, report_html

MODULES = {name: asset.content.decode() for name, asset in assets().items() if name.endswith(".js")}
TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
HOSTILE = "</script><script>alert(1)</script><!-- <b onclick='x'> & \u2028 \u202e"


def test_modules_share_one_scope_without_a_name_twice() -> None:
    names = [name for source in MODULES.values() for name in TOP_LEVEL.findall(source)]

    assert sorted(names) == sorted(set(names))


def test_every_module_is_bundled_once_behind_those_it_imports() -> None:
    text = bundle()

    assert "\nimport " not in text
    assert "\nexport " not in text
    for source in MODULES.values():
        for name in TOP_LEVEL.findall(source):
            assert (
                len(re.findall(rf"^(?:async )?(?:function|class|const|let) {name}\b", text, re.MULTILINE))
                == 1
            )
    places = [
        text.index(mark) for mark in ("function el(", "class LongTable", "class ProgramsView", "showView();")
    ]
    assert places == sorted(places)


def test_no_asset_has_inline_script_or_style_or_another_host() -> None:
    for name, asset in assets().items():
        text = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        ), name
    index = assets()[INDEX].content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src)", index)


def test_a_report_holds_its_data_whatever_is_in_them() -> None:
    data = {"title": HOSTILE, "programs": [], "timelines": [], "runs": [], "notes": [HOSTILE]}
    page = report_html(HOSTILE, data)
    embedded = page.split('id="report-data">')[1].split("</script>")[0]

    assert json.loads(embedded) == data
    assert page.count("<script") == page.count("</script>") == 2
    assert "alert(1)</script>" not in page
    assert "<title>&lt;/script&gt;" in page


def test_a_report_may_run_only_its_own_script() -> None:
    page = report_html("r", {})
    [policy] = re.findall(r'content-security-policy" content="([^"]*)"', page)
    for tag, text in (
        ("style", page.split("<style>")[1].split("</style>")[0]),
        ("script", page.split('<script type="module">')[1].split("</script>")[0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
