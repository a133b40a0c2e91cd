"""A chat model at the recording backend, and the ways to run a chain or a graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from autellix.testing import RecordingBackend

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

Drive = Callable[..., Any]


def by_invoke(runnable: Any, value: Any, **more: Any) -> Any:
    return runnable.invoke(value, **more)


def by_ainvoke(runnable: Any, value: Any, **more: Any) -> Any:
    return asyncio.run(runnable.ainvoke(value, **more))


def by_stream(runnable: Any, value: Any, **more: Any) -> Any:
    return list(runnable.stream(value, **more))


def by_astream(runnable: Any, value: Any, **more: Any) -> Any:
    async def run() -> Any:
        return [item async for item in runnable.astream(value, **more)]

    return asyncio.run(run())


def by_astream_events(runnable: Any, value: Any, **more: Any) -> Any:
    async def run() -> Any:
        return [event async for event in runnable.astream_events(value, version="v2", **more)]

    return asyncio.run(run())


@pytest.fixture(params=[by_invoke, by_ainvoke, by_stream, by_astream, by_astream_events])
def drive(request: pytest.FixtureRequest) -> Drive:
    """One of the ways to run something."""
    found: Drive = request.param
    return found


@pytest.fixture
def chat(backend: RecordingBackend) -> Iterator[ChatOpenAI]:
    langchain_openai = pytest.importorskip("langchain_openai")
    # Connections that outlive their event loop would be reported as unclosed.
    headers = {"Connection": "close"}
    yield langchain_openai.ChatOpenAI(
        base_url=backend.url, api_key="key", model="m", max_retries=0, default_headers=headers
    )
    # What it has not given back itself would hang on until the collector meets another test.
    assert open_runs() == 0


def open_runs() -> int:
    """Count what the integration still holds, and scopes of generators."""
    from autellix._programs import generators
    from autellix_langchain._runs import open_runs as runs

    return len(runs) + len(generators.open_scopes)
