"""The page of settings lists each field with its default, its variable and its flag."""

from __future__ import annotations

import json
from pathlib import Path

from autellix_backend.cli.options import OPTIONS
from autellix_backend.settings import Settings, settings_to_mapping

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
# Where generated files lie depends on who asks.
DEFAULT_OF = {"engine.state_dir": "`~/.cache/autellix`"}


def expected_rows() -> dict[str, list[str]]:
    flags = {field: f"`{flag}`" for flag, (field, _) in OPTIONS.items()}
    return {
        f"`{name}`": [
            DEFAULT_OF.get(name) or ("" if value is None else f"`{json.dumps(value)}`"),
            f"`AUTELLIX_{name.replace('.', '_').upper()}`",
            flags.get(name, ""),
        ]
        for section, values in settings_to_mapping(Settings()).items()
        for name, value in ((f"{section}.{key}", value) for key, value in values.items())
    }


def test_every_field_is_described_truly() -> None:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert {name: facts for name, *facts, _meaning in cells} == expected_rows()
    assert all(meaning for *_, meaning in cells)
