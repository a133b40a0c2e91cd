"""What is installed with the product: the page's files are in both kinds of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from autellix_backend.console.page.assets import assets

ROOT = Path(__file__).parents[3] / "backend"
STATIC = "autellix_backend/console/page/static"


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_a_package_holds_the_pages_files(builder: Any) -> None:
    included = {file.relative_path for file in builder(str(ROOT)).recurse_included_files()}

    assert included >= {f"{STATIC}/{name}" for name in assets()}
