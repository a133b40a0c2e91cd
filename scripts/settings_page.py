#!/usr/bin/env python3
"""Write docs/reference/settings.md from the settings of the code.

.venv/bin/python scripts/settings_page.py
"""

from __future__ import annotations

import json
import typing
from pathlib import Path

from autellix_backend.settings.base import default_cache_dir
from autellix_backend.settings.fields import Setting, describe_type
from autellix_backend.settings.load import SECTIONS, settings_of, settings_to_mapping
from autellix_backend.settings.sections import SchedulerConfig, Settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"
HEAD = """# Settings

<!-- Written by scripts/settings_page.py. -->

Every setting has one name, `section.field`, and four sources. Later ones win: the default, the TOML file
(`--config FILE`, `field` under `[section]`), the environment (`AUTELLIX_SECTION_FIELD`), the option. A value
that cannot be used ends the command with exit code 2 and a message that names the field, its source and the
expected value.

```console
$ autellix config show --config autellix.toml    # each setting in force and its source; --json
$ autellix config check autellix.toml            # whether the file can be used; exit code 2 if not
```

`GET /autellix/v1/config` shows the values of a running gateway. Secrets are shown as `(hidden)` everywhere.
In the environment and in options, lists are written `0.5,2,8`, words as in a shell. An empty default
means not set.
"""
SCHEDULER = "The order of calls in the engine, and in the gateway for engines without our scheduler."
ROW = "| setting | default | accepts | option | meaning |\n|---|---|---|---|---|"


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_section(name, kind) for name, kind in SECTIONS.items())


def _section(section: str, kind: type[typing.Any]) -> str:
    about = SCHEDULER if kind is SchedulerConfig else " ".join((kind.__doc__ or "").split())
    rows = [_row(section, kind, name, declared) for name, declared in settings_of(section).items()]
    return "\n".join([f"\n## `[{section}]`\n", about, "", ROW, *rows, ""])


def _row(section: str, kind: type[typing.Any], name: str, declared: Setting) -> str:
    accepts = declared.rule.expected if declared.rule else describe_type(typing.get_type_hints(kind)[name])
    option = f"`{declared.option}`" if declared.option else ""
    return f"| `{section}.{name}` | {_default(section, name)} | {accepts} | {option} | {declared.text} |"


def _default(section: str, name: str) -> str:
    value = settings_to_mapping(Settings())[section][name]
    if value == str(default_cache_dir()):
        return "`~/.cache/autellix`"
    return "" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
