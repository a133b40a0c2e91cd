"""Every link of the documentation has an existing target."""

from __future__ import annotations

import pytest
from tests.docs.pages import PAGES_READ, ROOT, Page


@pytest.mark.parametrize("page", PAGES_READ, ids=lambda page: page.name)
def test_links_have_existing_targets(page: Page) -> None:
    by_path = {other.path: other for other in PAGES_READ}
    lost = []
    for link in page.links():
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        if not (target.exists() and target.is_relative_to(ROOT)):
            lost.append(link)
            continue
        anchors = by_path[target].anchors() if target in by_path else set()
        if anchor and anchor not in anchors:
            lost.append(link)
    assert lost == []
