"""Cells of a notebook; skipped without IPython."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import autellix

ENTER = "import autellix; scope = autellix.program('a'); _ = scope.__enter__()"
LEAVE = "scope.__exit__(None, None, None)"
NAME = "name = autellix.current().name"


@pytest.fixture
def shell(sdk: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    config = pytest.importorskip("traitlets.config").Config()
    config.HistoryManager.enabled = False
    return interactive.InteractiveShell(config=config)


async def run_cell(shell: Any, text: str) -> Any:
    """Run a cell as a kernel does: in a task of its own."""
    done = await asyncio.ensure_future(
        shell.run_cell_async(text, transformed_cell=shell.transform_cell(text))
    )
    done.raise_error()
    return shell.user_ns.get("name")


async def test_scope_that_a_cell_has_entered_holds_in_the_next(shell: Any) -> None:
    await run_cell(shell, ENTER)
    assert await run_cell(shell, NAME) == "a"
    inner = "with autellix.program('inner'):\n    get_ipython().run_cell('name = autellix.current().name')"
    assert await run_cell(shell, inner) == "inner"
    assert await run_cell(shell, NAME) == "a"
    await run_cell(shell, LEAVE)
    assert await run_cell(shell, NAME) is None
    assert autellix.current().name is None


async def test_shell_is_left_as_it_was(shell: Any) -> None:
    autellix.uninstrument()
    assert not hasattr(type(shell).run_code, "__wrapped__")
