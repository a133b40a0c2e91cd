"""What the tests of propagation share: a client of a recording backend, and the rows of the docs' table."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import openai
import pytest
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.sdk.conftest import Recording

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Row:
    """One case; docs/guides/sdk.md has those with a limit."""

    what: str
    verdict: str
    how: str

    def markdown(self) -> str:
        return f"| {self.what} | {self.verdict} | {self.how} |"


ROWS: list[Row] = []


def row(what: str, how: str, verdict: str = "works") -> Callable[[F], F]:
    """Say what a test shows, for the table."""
    ROWS.append(Row(what, verdict, how))
    return lambda function: function


class Agent:
    """Calls the backend; the content of a call is its name in the DAG."""

    def __init__(self, backend: Recording) -> None:
        self.backend = backend
        self.client = openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0)

    def ask(self, name: str) -> str:
        self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": name}])
        return name

    async def aask(self, name: str) -> str:
        # A client per call: clients belong to one event loop, and some of these tests run several.
        async with openai.AsyncOpenAI(base_url=self.backend.url, api_key="key", max_retries=0) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": name}])
        return name

    def program_of(self, name: str) -> str | None:
        """The class of the program that a call belongs to; None for the process."""
        return self._call(name).get("x-autellix-program-name")

    def thread_of(self, name: str) -> str:
        return self._call(name)["x-autellix-thread-id"]

    def _call(self, name: str) -> dict[str, str]:
        return self.backend.by_content()[name]

    def programs(self) -> dict[str, str | None]:
        """The class of each call's program."""
        return {name: self.program_of(name) for name in self.backend.by_content()}

    def expect(self, dag: Mapping[str, tuple[str, ...] | None], program: str = "agent") -> None:
        """All calls belong to one program, and have these parents."""
        assert self.backend.dag() == dag
        assert set(self.programs().values()) == {program}
        assert len({call["x-autellix-program-id"] for call in self.backend.calls}) == 1


def together(branch: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let two branches begin before either calls: a call that has ended by then comes before the other."""
    both = threading.Barrier(2)

    def wait(name: str) -> Any:
        both.wait(PATIENCE_S)
        return branch(name)

    return wait


FORK_JOIN = {"root": (), "a": ("root",), "b": ("root",), "end": ("a", "b")}
ONE_BRANCH = {"root": (), "branch": ("root",), "end": ("branch",)}


def run_file(folder: Path, script: str, *args: str, **environment: str) -> None:
    """Run a program from a file: processes that it spawns import its main module again."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *args],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")


def run_on(loop: str, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on one of two event loops."""
    if loop == "asyncio":
        return asyncio.run(work)
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
