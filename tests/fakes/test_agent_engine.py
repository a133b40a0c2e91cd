"""The scripted engine answers real clients with calls of their own tools, whole and streamed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.fakes.agent_engine import AgentEngine
from tests.fakes.agent_turns import CLOSING, SHELL_COMMAND, next_turn, read_task
from tests.fakes.answers import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH

if TYPE_CHECKING:
    import anthropic

PROMPT = {"role": "user", "content": "STEPS=run,read+run Count the lines."}
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "level": {"type": "integer"}},
    "required": ["level"],
}
ARGUMENTS = {"command": SHELL_COMMAND, "level": 1}
CHAT_TOOL = {"type": "function", "function": {"name": "Bash", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "Bash", "parameters": SCHEMA}
MESSAGES_TOOL = {"name": "Bash", "input_schema": SCHEMA}


def names(path: str, body: dict[str, Any]) -> list[str]:
    return [call.tool.name for call in next_turn(read_task(path, body)).calls]


@pytest.mark.parametrize(
    ("path", "field", "tool", "result"),
    [
        (CHAT_PATH, "messages", CHAT_TOOL, {"role": "tool", "tool_call_id": "1", "content": "3"}),
        (RESPONSES_PATH, "input", FLAT_TOOL, {"type": "function_call_output", "call_id": "1", "output": "3"}),
        (
            MESSAGES_PATH,
            "messages",
            MESSAGES_TOOL,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
        ),
    ],
)
def test_a_step_follows_when_the_results_of_the_last_are_there(
    path: str, field: str, tool: dict[str, Any], result: dict[str, Any]
) -> None:
    """A step may call several tools, and the last answer none."""
    calls = [names(path, {field: [PROMPT, *[result] * count], "tools": [tool]}) for count in range(4)]
    assert calls == [["Bash"], ["Bash", "Bash"], ["Bash", "Bash"], []]


def test_another_prompt_begins_anew() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    body = {"messages": [PROMPT, result, {"role": "user", "content": "STEPS=run"}], "tools": [CHAT_TOOL]}
    assert names(CHAT_PATH, body) == ["Bash"]


def test_a_step_without_a_tool_is_left_out() -> None:
    assert names(CHAT_PATH, {"messages": [{"role": "user", "content": "STEPS=delegate,run"}]}) == []


@pytest.mark.parametrize("is_stream", [False, True])
async def test_openais_client_reads_chats(is_stream: bool) -> None:
    async with (
        AgentEngine().listening() as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client,
    ):
        fields: Any = {"model": "scripted", "messages": [PROMPT], "tools": [CHAT_TOOL]}
        if is_stream:
            async with client.chat.completions.stream(**fields) as stream:
                answer: Any = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(**fields)
        [call] = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("Bash", ARGUMENTS)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_openais_client_reads_responses(is_stream: bool) -> None:
    async with (
        AgentEngine().listening() as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client,
    ):
        fields: Any = {"model": "scripted", "input": [PROMPT], "tools": [FLAT_TOOL]}
        if is_stream:
            async with client.responses.stream(**fields) as stream:
                answer: Any = await stream.get_final_response()
        else:
            answer = await client.responses.create(**fields)
        _, call = answer.output
        assert (call.name, json.loads(call.arguments)) == ("Bash", ARGUMENTS)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_anthropics_client_reads_messages(is_stream: bool) -> None:
    library: Any = pytest.importorskip("anthropic")
    client: anthropic.AsyncAnthropic
    engine = AgentEngine()
    async with engine.listening() as url, library.AsyncAnthropic(base_url=url, api_key="k") as client:
        fields: Any = {"model": "m", "max_tokens": 9, "messages": [PROMPT], "tools": [MESSAGES_TOOL]}
        if is_stream:
            async with client.messages.stream(**fields) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.create(**fields)
        _, call = answer.content
        assert (call.name, call.input) == ("Bash", ARGUMENTS)
        [exchange] = engine.exchanges
        assert json.loads(exchange.body)["model"] == "m"


async def test_a_task_without_steps_gets_the_closing_text() -> None:
    async with (
        AgentEngine().listening() as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client,
    ):
        answer = await client.responses.create(model="scripted", input="Hello.")
        assert answer.output_text == CLOSING
        assert "scripted" in [model.id async for model in client.models.list()]
