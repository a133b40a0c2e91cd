#!/usr/bin/env python3
"""Write docs/reference/settings.md, and the names in the chart's schema, from the settings of the code.

.venv/bin/python scripts/settings_page.py
"""

from __future__ import annotations

import json
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import AfterValidator, TypeAdapter

from autellix_backend.cli.options import OPTIONS, text_of
from autellix_backend.settings import SECTIONS, Settings, fields_of, settings_to_mapping
from autellix_backend.settings.types import MAX_NUMBER, Check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"
HEAD = """# Settings

<!-- Written by scripts/settings_page.py. -->

All settings and their defaults; [what to tune](../guides/sizing.md#what-to-tune) names the few that matter.
Every setting has one name, `section.field`, and four sources, of which later ones win: the default, the TOML
file (`--config FILE`, `field` under `[section]`), the environment (`AUTELLIX_SECTION_FIELD`), the option.
`--preset paper` replaces three defaults by [the paper's](../scheduling.md#the-papers-policies).

```sh
# Each setting in force, and its source:
autellix config show --config autellix.toml
# What `serve` would refuse, and misspelt variables; then the exit code is 2:
autellix config check autellix.toml
```

`GET /autellix/v1/config` shows the values of a running gateway. Secrets are hidden. In the environment
and in options lists are written `0.5,2,8`, words as in a shell. An empty default means not set.
"""
SCHEMA = PAGE.parents[2] / "deploy" / "helm" / "autellix" / "values.schema.json"
ROW = "| setting, option | default | meaning |\n|---|---|---|"


def page() -> str:
    """Return the page."""
    sections = settings_to_mapping(Settings())
    return HEAD + "".join(_section(name, defaults) for name, defaults in sections.items())


def chart_schema() -> str:
    """Return the chart's schema with the settings that there are, and the bounds of their numbers."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for section, accepted in schema["properties"]["settings"]["properties"].items():
        # The chart sets these itself, or they are secrets.
        refused = accepted.get("propertyNames", {"not": {"enum": ()}})["not"]["enum"]
        names = [name for name in fields_of(section) if name not in refused]
        accepted["properties"] = {name: _value_schema(section, name) for name in names}
    return json.dumps(schema, indent=2) + "\n"


def _value_schema(section: str, name: str) -> dict[str, object]:
    bounds = {key: value for key, value in _schema(section, name).items() if key in ("minimum", "maximum")}
    return {"allOf": [{"$ref": "#/definitions/value"}], **bounds}


def _section(section: str, defaults: dict[str, object]) -> str:
    about = " ".join((SECTIONS[section].__doc__ or "").split())
    rows = [_row(section, name, default) for name, default in defaults.items()]
    return "\n".join([f"\n## `[{section}]`\n", about, "", ROW, *rows, ""])


def _row(section: str, name: str, default: object) -> str:
    options = [f", `{option}`" for option, field in OPTIONS.items() if field == f"{section}.{name}"]
    text = text_of(section, name)
    if (accepted := _accepts(section, name)) and not _names_all(text, accepted):
        text = f"{text} ({accepted})"
    return f"| `{section}.{name}`{''.join(options)} | {_default(default)} | {text} |"


def _accepts(section: str, name: str) -> str | None:
    """Return which values a setting accepts, in words, where its default does not show it."""
    schema = _schema(section, name)
    if expected := _expected(fields_of(section)[name].annotation, fields_of(section)[name].metadata):
        return expected
    if schema.get("maximum", MAX_NUMBER) < MAX_NUMBER:
        return f"{schema['minimum']} to {schema['maximum']}"
    return f"{schema['minLength']} characters or more" if schema.get("minLength", 0) > 1 else None


def _schema(section: str, name: str) -> dict[str, Any]:
    """Return the JSON schema of a setting; that of its values if it may be unset."""
    schema: dict[str, Any] = TypeAdapter(SECTIONS[section]).json_schema(mode="validation")["properties"][name]
    return schema | next((part for part in schema.get("anyOf", ()) if part["type"] != "null"), {})


def _names_all(text: str, accepted: str) -> bool:
    """Return whether a text names each of the values that are accepted."""
    _, is_list, values = accepted.partition("one of ")
    return bool(is_list) and all(f"`{value}`" in text for value in values.split(", "))


def _expected(annotation: object, metadata: Sequence[object]) -> str | None:
    """Return what the check of a type expects, if it has one; of a list, that of its items."""
    for item in metadata:
        if isinstance(item, AfterValidator) and isinstance(item.func, Check):
            return item.func.expected
    for part in typing.get_args(annotation):
        found = _expected(typing.get_args(part)[:1], getattr(part, "__metadata__", ()))
        if found is None and typing.get_origin(part) is not typing.Annotated:
            found = _expected(part, ())
        if found is not None:
            return found
    return None


def _default(value: object) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(chart_schema(), encoding="utf-8")
    print(f"wrote {PAGE} and {SCHEMA}")
