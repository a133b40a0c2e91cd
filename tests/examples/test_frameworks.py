"""The few lines for each framework that people paste; `scripts/frameworks --examples` runs them all."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.examples.runner import EXAMPLES, by_program, ids, parents, run

from autellix.testing import RecordingBackend, tool_call

FRAMEWORKS = sorted((EXAMPLES / "frameworks").glob("*.py"))
MOST_LINES = 15
ADDRESS = "http://127.0.0.1:8000"


def imported(tree: ast.Module) -> set[str]:
    """Return the modules that a module imports, but for the standard library's."""
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}


def is_installed(module: str) -> bool:
    """Return whether a module and its package are there."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    except ValueError:
        # It has been imported, lazily and without a specification.
        return True


def answer(body: dict[str, Any]) -> str | dict[str, Any]:
    """Answer as a model that calls the tool once."""
    if body.get("tools") and "3.7 million" not in json.dumps(body["messages"]):
        return tool_call(("population", {"city": "Berlin"}))
    # DSPy names the fields that it wants in its prompt.
    fields = sorted(set(re.findall(r"\[\[ ## (\w+) ## \]\]", json.dumps(body["messages"]))))
    return "\n".join(f"[[ ## {name} ## ]]\n3.7 million" for name in fields) or "3.7 million"


@pytest.mark.parametrize("path", FRAMEWORKS, ids=lambda path: path.stem)
def test_it_is_short_and_says_what_it_needs(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    docstring = ast.get_docstring(tree)
    lines = [line for line in path.read_text("utf-8").splitlines()[1:] if line.strip()]

    assert docstring is not None
    assert re.fullmatch(r".+: `pip install .+ git\+https://github\.com/autellix/autellix`\.", docstring), (
        docstring
    )
    assert len([line for line in lines if not line.strip().startswith('"""')]) <= MOST_LINES
    assert "autellix" in imported(tree)


@pytest.mark.parametrize("path", FRAMEWORKS, ids=lambda path: path.stem)
def test_it_is_one_program_whose_calls_follow_one_another(path: Path, tmp_path: Path) -> None:
    code = path.read_text("utf-8")
    if missing := [name for name in imported(ast.parse(code)) if not is_installed(name)]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    with RecordingBackend(answer=answer) as backend:
        root = f"http://127.0.0.1:{backend.port}"
        # Tools are read from their source, so it is a file.
        copy = tmp_path / path.name
        copy.write_text(code.replace(ADDRESS, root), "utf-8")
        run(path.stem, f"import runpy; runpy.run_path({str(copy)!r}, run_name='__main__')", backend.url, {})
        [calls] = by_program(list(backend.recorded))
    assert len(calls) > 1
    assert not parents(calls[0])
    assert all(parents(call) & ids(calls) for call in calls[1:])


def test_each_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert [path.name for path in FRAMEWORKS if f"(frameworks/{path.name})" not in page] == []
