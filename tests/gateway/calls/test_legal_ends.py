"""Whole streams with any legal end: official clients read the same directly and through the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from tests.agents.packages import node_program
from tests.gateway.calls.test_bad_answers import BODIES, gateway
from tests.raw_engine import STREAM, chunk

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CREATED = {"type": "response.created", "response": {"id": "resp_1", "object": "response"}}
START = {
    "type": "message_start",
    "message": {"id": "m", "type": "message", "role": "assistant", "content": []},
}
END = b"0\r\n\r\n"


def event(data: dict[str, Any], *, name: str = "", blank: str = " ", line: str = "\n") -> bytes:
    lines = [*([f"event:{blank}{name}"] if name else []), f"data:{blank}{json.dumps(data)}", "", ""]
    return line.join(lines).encode()


def delta(reason: str | None = None, **form: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": reason}]}, **form)


def response(state: str, *, is_named: bool = True, **form: str) -> list[bytes]:
    ends = {"type": f"response.{state}", "response": {"id": "resp_1", "object": "response"}}
    events = (CREATED, ends)
    return [event(each, name=str(each["type"]) if is_named else "", **form) for each in events]


STREAMS = {
    "vLLM's": (CHAT, [delta(), delta("stop"), b"data: [DONE]\n\n"]),
    "no [DONE]": (CHAT, [delta(), delta("stop")]),
    "no [DONE], but usage": (CHAT, [delta("stop"), event({"choices": [], "usage": {"prompt_tokens": 1}})]),
    "no blank behind the colon": (CHAT, [delta("stop", blank=""), b"data:[DONE]\n\n"]),
    "CRLF": (CHAT, [delta(line="\r\n"), delta("stop", line="\r\n"), b"data: [DONE]\r\n\r\n"]),
    "CR": (CHAT, [delta(line="\r"), delta("stop", line="\r"), b"data: [DONE]\r\r"]),
    "a named [DONE]": (CHAT, [delta("stop"), b"event: done\ndata: [DONE]\n\n"]),
    "one line end": (CHAT, [delta("stop"), b"data: [DONE]\n"]),
    "none": (CHAT, [delta("stop"), b"data: [DONE]"]),
    "usage behind it": (CHAT, [delta(), b"data: [DONE]\n\n", delta("stop")]),
    **{f"response {state}": (RESPONSES, response(state)) for state in ("completed", "incomplete", "failed")},
    "response cancelled": (RESPONSES, response("cancelled")),
    "response without names": (RESPONSES, [*response("completed", is_named=False), b"data: [DONE]\n\n"]),
    "response without blanks": (RESPONSES, response("completed", blank="")),
    "response and [DONE]": (RESPONSES, [*response("completed"), b"data: [DONE]\n\n"]),
    "message": (
        MESSAGES,
        [event(START, name="message_start"), event({"type": "message_stop"}, name="message_stop")],
    ),
    "message without names": (MESSAGES, [event(START), event({"type": "message_stop"})]),
    "message without blanks": (
        MESSAGES,
        [
            event(START, name="message_start", blank=""),
            event({"type": "message_stop"}, name="message_stop", blank=""),
        ],
    ),
}


async def read(url: str, path: str) -> list[Any]:
    """Return what an official client reads of a stream."""
    body: dict[str, Any] = {**BODIES[path], "stream": True}
    if path == MESSAGES:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            return [each.model_dump() async for each in await client.messages.create(**body)]
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as other:
        create: Any = other.responses.create if path == RESPONSES else other.chat.completions.create
        return [each.model_dump() async for each in await create(**body)]


@pytest.mark.parametrize("name", STREAMS)
async def test_official_clients_read_the_same(serve: Any, name: str) -> None:
    path, events = STREAMS[name]
    async with gateway(serve) as (rig, raw, settled):
        raw.parts, raw.stays = [STREAM, *map(chunk, events), END], True
        direct = await read(raw.url, path)
        assert await read(rig.url, path) == direct
        assert direct or name == "message without names"
        await rig.settled()
    # A failed response is no success of the engine.
    assert [call.outcome for call in settled] == ["engine_error" if name == "response failed" else "ok"]


@pytest.fixture(scope="session")
def streams_program() -> Path:
    return node_program("streams.mjs")


@pytest.mark.network
async def test_official_clients_in_javascript_read_the_same(serve: Any, streams_program: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    node = await asyncio.create_subprocess_exec("node", str(streams_program), stdin=pipe, stdout=pipe)
    assert node.stdin is not None
    assert node.stdout is not None
    for name, (path, events) in STREAMS.items():
        async with gateway(serve) as (rig, raw, settled):
            raw.parts, raw.stays = [STREAM, *map(chunk, events), END], True
            found: list[Any] = []
            for url in (raw.url, rig.url):
                asked = {"url": url, "path": path, "body": {**BODIES[path], "stream": True}}
                node.stdin.write(json.dumps(asked).encode() + b"\n")
                found.append(json.loads(await node.stdout.readline()))
            await rig.settled()
        assert found[0] == found[1], name
        assert found[0] or name == "message without names"
        assert [call.outcome for call in settled] == ["engine_error" if name == "response failed" else "ok"]
    node.stdin.close()
    assert await node.wait() == 0
