"""The browser and the gateways of tests that look at the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.page.browser import BrowserThread, missing, running_browser
from tests.console.page.stage import Stage, staged


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserThread]:
    """Yield the browser that all tests of a worker share."""
    if (problem := missing()) is not None:
        pytest.skip(problem)
    with running_browser() as found:
        yield found


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Yield a gateway without tenants."""
    with staged() as found:
        yield found


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return the folder for pictures: AUTELLIX_PICTURES if that is set, to be kept."""
    folder = Path(os.environ.get("AUTELLIX_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
