"""A real vLLM serves the converted SmolLM2, which answers in English and calls tools by their schema."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from tests.conftest import LIVE_STARTUP_S

from autellix_backend.engines.replica import SMALL_MODEL_PACKAGE, VllmReplica
from autellix_backend.settings import EngineSettings, Settings
from autellix_lab.demo.smollm2 import NAME, smollm2

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(700)]

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Berlin", "Paris"]}}, "required": ["city"]}
FUNCTION = {"name": "population", "parameters": {**SCHEMA, "additionalProperties": False}, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmReplica]:
    if missing := [
        name for name in ("vllm", "gguf", SMALL_MODEL_PACKAGE) if not importlib.util.find_spec(name)
    ]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    folder, name = smollm2(tmp_path_factory.mktemp("smollm2"))
    settings = EngineSettings(
        model=str(folder),
        served_model_name=name,
        state_dir=folder.parent,
        startup_timeout_s=LIVE_STARTUP_S,
        max_num_seqs=2,
    )
    replica = VllmReplica(Settings(engine=settings))
    asyncio.run(replica.start())
    yield replica
    asyncio.run(replica.stop())


def message(engine: VllmReplica, question: str, **fields: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    body = {"model": NAME, "messages": messages, "max_tokens": 64} | fields

    async def main() -> dict[str, Any]:
        url = f"{engine.base_url}/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            answer = json.loads(await response.read())
            assert response.status == 200, answer
            found: dict[str, Any] = answer["choices"][0]["message"]
            return found

    return asyncio.run(main())


def test_it_knows_the_capital_of_france(engine: VllmReplica) -> None:
    """Without a temperature in the call: the model's own default is greedy."""
    answer = message(engine, "What is the capital of France?")
    assert answer["content"] == "The capital of France is Paris."


def test_a_named_strict_tool_gets_valid_arguments(engine: VllmReplica) -> None:
    """What the examples with tools rely on."""
    choice = {"type": "function", "function": {"name": "population"}}
    answer = message(engine, "How many people live in Berlin?", tools=[TOOL], tool_choice=choice)
    [call] = answer["tool_calls"]
    assert call["function"]["name"] == "population"
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}


def test_automatic_tool_choice_is_on(engine: VllmReplica) -> None:
    assert engine.tool_parser == "hermes"
    message(engine, "How many people live in Berlin?", tools=[TOOL], tool_choice="auto")
