#!/usr/bin/env python3
"""Write docs/reference/api.md from the docstrings of the client's public names.

.venv/bin/python scripts/api_page.py
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "api.md"
MODULES = ("autellix", "autellix.web", "autellix.testing", "autellix_langchain", "autellix_autogen")
PLACES = ("sdk", "integrations/langchain", "integrations/autogen")
HEAD = """# The client's API

<!-- Written by scripts/api_page.py. -->

What `import autellix` offers, from its docstrings; [the guide](../guides/sdk.md) shows it in use.
`autellix.integration` is for authors of integrations and may change.
"""
_FIELD = re.compile(r"^(\s*)(\*{0,2}\w+): ")


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_module(name) for name in MODULES)


def _module(name: str) -> str:
    path = _path(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    about = ast.get_docstring(tree) or ""
    parts = [f"\n## {name}\n\n{about.splitlines()[0]}\n"]
    for public in _exported(tree):
        found = _definition(public, tree)
        if found is not None:
            parts.append(_described(public, found))
    return "".join(parts)


def _path(name: str) -> Path:
    for place in PLACES:
        base = ROOT / place / name.replace(".", "/")
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.exists():
                return path
    raise FileNotFoundError(name)


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _definition(name: str, tree: ast.Module) -> ast.AST | None:
    """Return where a name is defined, through the imports that bring it; None for a plain value."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    origin = _path(node.module or "")
                    return _definition(alias.name, ast.parse(origin.read_text(encoding="utf-8")))
    return None


def _described(name: str, node: ast.AST) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    about = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        text = f"\n### `{name}`\n\n{_prose(about)}"
        return text + _attributes(node) + _methods(node)
    return f"\n### `{name}`\n\n```text\n{_signature(name, node)}\n```\n\n{_prose(about)}"


def _methods(node: ast.ClassDef) -> str:
    rows = [
        child
        for child in node.body
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        and not child.name.startswith("_")
        and not any("property" in ast.unparse(each) for each in child.decorator_list)
        and ast.get_docstring(child)
    ]
    parts = []
    for child in rows:
        about = _prose(ast.get_docstring(child) or "")
        parts.append(
            f"\n#### `{node.name}.{child.name}`\n\n```text\n{_signature(child.name, child)}\n```\n\n{about}"
        )
    return "".join(parts)


def _attributes(node: ast.ClassDef) -> str:
    """Return the table of fields and properties."""
    rows = []
    for at, child in enumerate(node.body):
        if isinstance(child, ast.AnnAssign) and not ast.unparse(child.target).startswith("_"):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            about = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                about = str(after.value.value)
            rows.append((ast.unparse(child.target), ast.unparse(child.annotation), about))
        elif isinstance(child, ast.FunctionDef) and any(
            "property" in ast.unparse(each) for each in child.decorator_list
        ):
            kind = ast.unparse(child.returns) if child.returns else ""
            rows.append(
                (child.name, kind, (ast.get_docstring(child) or "").replace("\n\nRaises:", " Raises:"))
            )
    if not rows:
        return ""
    lines = ["", "| field | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{_cell(kind)}` | {_cell(about)} |" for name, kind, about in rows]
    return "\n".join(lines) + "\n"


def _signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{prefix}{name}({arguments.removeprefix('self, ').removeprefix('self')}){returns}"
    if len(line) <= 100:
        return line
    inner = re.sub(r", (?=\*|\*\*|\w+[:=,]|\w+$)", ",\n    ", arguments.removeprefix("self, "))
    return f"{prefix}{name}(\n    {inner},\n){returns}"


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    blocks = re.split(r"^(Args|Returns|Raises|Yields):\n", docstring, flags=re.MULTILINE)
    lines.append(_code(blocks[0]))
    for title, body in zip(blocks[1::2], blocks[2::2], strict=True):
        heading = {"Args": "Arguments"}.get(title, title)
        lines.append(f"**{heading}**\n")
        lines.append(_fields(textwrap.dedent(body)) if title in ("Args", "Raises") else f"{_joined(body)}\n")
    return "\n".join(lines).rstrip() + "\n"


def _fields(body: str) -> str:
    entries: list[str] = []
    for line in body.splitlines():
        if _FIELD.match(line) and not line.startswith(" "):
            name, _, text = line.partition(": ")
            entries.append(f"- `{name}`: {text}")
        elif line.strip() and entries:
            entries[-1] += f" {line.strip()}"
    return "\n".join(entries) + "\n"


def _code(text: str) -> str:
    """Return text whose indented blocks are fenced."""
    parts = []
    for block in text.strip().split("\n\n"):
        if block.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```\n")
        else:
            parts.append(f"{_joined(block)}\n")
    return "\n".join(parts)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _joined(text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
