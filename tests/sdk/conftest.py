"""A recording backend, and the client switched on for one test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from tests.client import switched_on
from tests.sdk.propagation import Agent
from tests.waiting import PATIENCE_S

import autellix
from autellix.testing import RecordingBackend


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, also where tests/conftest.py is not loaded."""
    return "asyncio"


class Recording(RecordingBackend):
    """The recording backend, with the headers of calls as plain mappings."""

    @property
    def calls(self) -> list[dict[str, str]]:
        return [{**call.headers, "content": call.content} for call in self.recorded]

    def by_content(self) -> dict[str, dict[str, str]]:
        """The headers of each call, by the text of its last message."""
        return {call["content"]: call for call in self.calls}


@pytest.fixture
def make_backend() -> Iterator[Callable[..., Recording]]:
    with contextlib.ExitStack() as stack:
        yield lambda **behaviour: cast("Recording", stack.enter_context(Recording(**behaviour)))


@pytest.fixture
def backend(make_backend: Callable[..., Recording]) -> Recording:
    return make_backend()


@pytest.fixture
def sdk() -> Iterator[None]:
    """The client, switched on for this test only."""
    with switched_on():
        yield


@pytest.fixture
def agent(sdk: None, backend: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """One who calls the backend, which the client has been told of."""
    # On a busy machine the backend of a test may take longer than a client should wait;
    # what is told once is lost.
    monkeypatch.setattr("autellix._sessions.upkeep.PATIENCE_S", PATIENCE_S)
    autellix.configure(backend.url)
    agent = Agent(backend)
    yield agent
    agent.client.close()


@pytest.fixture
def run_script() -> Callable[..., str]:
    """Run a program in a process of its own; its output comes back."""

    def run(script: str, *args: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *args],
            capture_output=True,
            text=True,
            # Some import every framework there is.
            timeout=1.5 * PATIENCE_S,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run
