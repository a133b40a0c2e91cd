"""The page's files: no script or style in them but their own, and nothing of another host."""

from __future__ import annotations

import re

from autellix_backend.console.page.assets import INDEX, assets


def test_no_asset_has_inline_script_or_style_or_another_host() -> None:
    for name, asset in assets().items():
        text = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        if name.startswith("vendor/"):
            # Its address, in the comment of its first line.
            text = text.replace("https://github.com/leeoniya/uPlot", "")
        assert not re.search(r"https?://", text), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        ), name
    index = assets()[INDEX].content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! (type=\"module\" )?src=\"page/)", index)


def test_what_others_made_is_there_with_its_licence() -> None:
    vendored = {name for name in assets() if name.startswith("vendor/")}

    assert vendored == {f"vendor/uPlot{end}" for end in (".iife.min.js", ".min.css", ".LICENSE.txt")}
    assert b"The MIT License" in assets()["vendor/uPlot.LICENSE.txt"].content
