"""The page and its data as one file, which a browser opens without a server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator

from autellix_backend.page.assets import INDEX, assets
from autellix_backend.page.headers import content_policy

FIRST_MODULE = "main.js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_BODY = re.compile(r"<body>\n(.*)</body>", re.DOTALL)
_MARKS = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def report_html(title: str, data: object) -> str:
    """Return the page with its data in it.

    Data can neither end their element nor act as markup. The page may run only its own script, and load
    nothing.

    Args:
        title: A line that names the report.
        data: Plain JSON values, as `ReportSource` reads them.
    """
    script, style = bundle(), assets()["page.css"].content.decode()
    policy = content_policy(f"'{_digest(script)}'", f"'{_digest(style)}'")
    found = _BODY.search(assets()[INDEX].content.decode())
    assert found is not None, f"{INDEX} has a body"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{found[1]}"
        f'<script type="application/json" id="report-data">{json.dumps(data).translate(_MARKS)}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundle() -> str:
    """Return the page's modules as one script, each after its imports, without import and export lines."""
    return "".join(_without_links(name) for name in _in_order(FIRST_MODULE, []))


def _in_order(name: str, seen: list[str]) -> Iterator[str]:
    if name in seen:
        return
    seen.append(name)
    for match in _IMPORT.finditer(_source(name)):
        yield from _in_order(match[2], seen)
    yield name


def _without_links(name: str) -> str:
    return re.sub(r"^export ", "", _IMPORT.sub("", _source(name)), flags=re.MULTILINE)


def _source(name: str) -> str:
    return assets()[name].content.decode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
