"""Scopes in the generators of fixtures and dependencies, which pytest's plugins and taskiq drive."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE_S

import autellix

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import contextlib
import autellix, pytest

seen = []

def name_here():
    return autellix.current().name

@pytest.fixture
def outer():
    with autellix.program("outer"):
        yield

@pytest.fixture
async def opened(FIXTURE):
    assert autellix.current().is_implicit or name_here() == "outer"
    async with autellix.program("opened"):
        assert name_here() == "opened"
        yield name_here()
        assert name_here() == "opened"

@pytest.fixture
async def stacked():
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(autellix.program("stacked"))
        yield

async def test_async_fixture(opened):
    assert (opened, name_here()) == ("opened", "opened")

async def test_exit_stack(stacked):
    assert name_here() == "stacked"

async def test_both(opened, stacked):
    assert name_here() == "stacked"

def test_sync_test(SYNC):
    assert name_here() == "opened"

async def test_afterwards():
    assert autellix.current().is_implicit

def test_sync_afterwards():
    assert autellix.current().is_implicit
"""


def run_pytest(folder: Path, tests: str, *options: str) -> None:
    (folder / "test_opened.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_opened.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("around", ["", "outer"])
def test_fixtures_of_pytest_asyncio(tmp_path: Path, around: str) -> None:
    pytest.importorskip("pytest_asyncio")
    tests = TESTS.replace("FIXTURE", around).replace("SYNC", "opened")
    mode = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function")
    run_pytest(tmp_path, tests, "-p", "no:anyio", *(option for value in mode for option in ("-o", value)))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("around", ["", "outer"])
def test_fixtures_of_anyio(tmp_path: Path, loop: str, around: str) -> None:
    pytest.importorskip(loop)
    tests = TESTS.replace("FIXTURE", around).replace("test_sync_test(SYNC)", "unused(opened)")
    (tmp_path / "conftest.py").write_text(
        f"import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return {loop!r}\n"
    )
    run_pytest(tmp_path, tests, "-p", "no:asyncio", "-o", "anyio_mode=auto")


def opened() -> Iterator[str | None]:
    with autellix.program("sync"):
        yield autellix.current().name


async def opened_async() -> AsyncIterator[str | None]:
    with autellix.program("async"):
        yield autellix.current().name


@pytest.mark.parametrize("dependency", [opened, opened_async])
async def test_dependencies_of_taskiq(sdk: None, dependency: object) -> None:
    library = pytest.importorskip("taskiq_dependencies")

    depends = library.Depends(dependency)

    def job(value: Any = depends) -> Any:
        return value, autellix.current().name

    graph = library.DependencyGraph(job)
    async with graph.async_ctx() as context:
        found, name = job(**await context.resolve_kwargs())
    assert found == name
    assert name in ("sync", "async")
    assert autellix.current().name is None
