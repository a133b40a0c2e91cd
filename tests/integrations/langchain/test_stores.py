"""A store that embeds for all its users in one task, which the first of them starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import pytest

import autellix
from autellix.testing import RecordingBackend

pytest.importorskip("langgraph")

from langgraph.store.base.batch import AsyncBatchedBaseStore
from langgraph.store.memory import InMemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.store.base import Op


class EmbeddingStore(AsyncBatchedBaseStore):
    """As those for SQLite and Postgres are, in memory."""

    def __init__(self, backend: RecordingBackend) -> None:
        super().__init__()
        self._client = openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0)
        self._inner = InMemoryStore(index={"dims": 2, "embed": self._embed})

    def _embed(self, texts: Any) -> list[list[float]]:
        return [self._client.embeddings.create(model="m", input=text).data[0].embedding for text in texts]

    def batch(self, ops: Iterable[Op]) -> Any:
        return self._inner.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> Any:
        return self._inner.batch(ops)

    async def aclose(self) -> None:
        self._client.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def test_embeddings_are_in_no_program(backend: RecordingBackend) -> None:
    """The task that makes them serves both programs; the first one's end does not wait for it."""
    stores: list[EmbeddingStore] = []
    first_is_in, second_is_done = asyncio.Event(), asyncio.Event()

    async def run(name: str) -> str:
        with autellix.program(name) as program:
            if not stores:
                stores.append(EmbeddingStore(backend))
            await stores[0].aput(("notes",), name, {"text": name})
            if name == "first":
                first_is_in.set()
                await second_is_done.wait()
        return program.program_id

    first = asyncio.create_task(run("first"))
    await first_is_in.wait()
    await run("second")
    second_is_done.set()
    program_id = await first
    assert len(backend.recorded) == 2
    assert {call.header("X-Autellix-Flags") for call in backend.recorded} == {"implicit"}
    assert program_id not in backend.programs()
    await stores[0].aclose()
