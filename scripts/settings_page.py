#!/usr/bin/env python3
"""Write docs/reference/settings.md from the settings of the code.

.venv/bin/python scripts/settings_page.py
"""

from __future__ import annotations

import json
from pathlib import Path

from autellix_backend.cli.options import OPTIONS
from autellix_backend.settings import (
    Settings,
    declaration_of,
    default_cache_dir,
    settings_to_mapping,
    texts_of,
)
from autellix_backend.settings.fields import describe_type, rules_of, types_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"
HEAD = """# Settings

<!-- Written by scripts/settings_page.py. -->

Every setting has one name, `section.field`, and four sources. Later ones win: the default, the TOML file
(`--config FILE`, `field` under `[section]`), the environment (`AUTELLIX_SECTION_FIELD`), the option. A value
that cannot be used ends the command with exit code 2 and a message that names the field, its source and the
expected value. `autellix config check` finds more without starting anything: files that are missing or cannot
be written, packages, and `AUTELLIX_` variables that mean nothing, with the nearest name that does.

```console
$ autellix config show --config autellix.toml    # each setting in force and its source; --json
$ autellix config check autellix.toml            # all that `serve` would refuse; exit code 2 if anything
```

`GET /autellix/v1/config` shows the values of a running gateway. Secrets are shown as `(hidden)` everywhere.
In the environment and in options, lists are written `0.5,2,8`, words as in a shell. An empty default
means not set.
"""
ROW = "| setting | default | accepts | option | meaning |\n|---|---|---|---|---|"


def page() -> str:
    """Return the page."""
    sections = settings_to_mapping(Settings())
    return HEAD + "".join(_section(name, defaults) for name, defaults in sections.items())


def _section(section: str, defaults: dict[str, object]) -> str:
    about = " ".join((declaration_of(section).__doc__ or "").split())
    rows = [_row(section, name, default) for name, default in defaults.items()]
    return "\n".join([f"\n## `[{section}]`\n", about, "", ROW, *rows, ""])


def _row(section: str, name: str, default: object) -> str:
    declaration = declaration_of(section)
    rule = rules_of(declaration).get(name)
    accepts = rule.expected if rule else describe_type(types_of(declaration)[name])
    option = next((f"`{option}`" for option, field in OPTIONS.items() if field == f"{section}.{name}"), "")
    text = texts_of(declaration)[name]
    return f"| `{section}.{name}` | {_default(default)} | {accepts} | {option} | {text} |"


def _default(value: object) -> str:
    if value == str(default_cache_dir()):
        return "`~/.cache/autellix`"
    return "" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
