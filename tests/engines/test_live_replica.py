"""A real vLLM server with the plugin answers a chat completion."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from tests.report_links import overhearing

from autellix_backend.engines.replica import VllmReplica
from autellix_backend.reports.report import EngineReport
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(700)]

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How much is 1 + 1?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "2"},
]


def chat(replica: VllmReplica, **fields: object) -> dict[str, Any]:
    body = {"model": DEMO_MODEL_NAME, "messages": MESSAGES, "max_tokens": 8, "temperature": 0} | fields
    return post(replica, "/v1/chat/completions", body)


def post(replica: VllmReplica, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        url = replica.base_url + path
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            answer: dict[str, Any] = json.loads(await response.read())
            assert response.status == 200, answer
            return answer

    return asyncio.run(main())


def test_answers_a_chat_with_tool_messages(live_engine: VllmReplica) -> None:
    """Tool calls and results in the history render, and greedy answers repeat."""
    first, second = (
        chat(live_engine, tools=[TOOL], tool_choice="none"),
        chat(live_engine, tools=[TOOL], tool_choice="none"),
    )

    assert first["usage"]["completion_tokens"] == 8
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    assert live_engine.is_alive()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL], "max_tokens": 8}),
        (
            "/v1/responses",
            {"input": "Add.", "tools": [FLAT_TOOL], "max_output_tokens": 8},
        ),
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": "Add."}],
                "tools": [{"name": "add", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "auto"},
                "max_tokens": 8,
            },
        ),
    ],
)
def test_an_agent_may_leave_the_choice_of_tools_to_the_model(
    live_engine: VllmReplica, path: str, fields: dict[str, Any]
) -> None:
    """Nothing was set for it: the parser is that of the model's chat template."""
    assert live_engine.tool_parser == "granite"
    post(live_engine, path, {"model": DEMO_MODEL_NAME, "tool_choice": "auto", **fields})


def test_sends_the_report_of_a_call(live_engine: VllmReplica) -> None:
    """It carries the ids of the body's vllm_xargs."""
    xargs = {"autellix_program": "program-1", "autellix_call": "call-1", "autellix_service_s": 0.25}
    with overhearing(*live_engine.report_endpoints) as overheard:
        chat(live_engine, vllm_xargs=xargs)
        account = EngineReport.from_bytes(overheard.next_report())

    assert (account.program_id, account.call_id, account.output_tokens) == ("program-1", "call-1", 8)
    assert account.inherited_service_s == 0.25
