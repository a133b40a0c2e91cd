"""Every endpoint of the table, through the fake engine."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import openai
import pytest
from tests.fakes.engine import FakeBehaviour, Fault
from tests.stores.tables import all_programs

from autellix_backend.gateway.calls.dialects import DIALECTS, Dialect
from autellix_backend.gateway.calls.sse import read_event
from autellix_backend.gateway.errors import ErrorShape

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    "/v1/embeddings": {"input": ["hello", "you"]},
}
IN_FULL = [row for row in DIALECTS if row.path in BODIES]
STREAMING = [row for row in DIALECTS if row.stream_ends]
RESPONSE_ID = re.compile(rb"resp_[0-9a-f]+")
TOKENS = "token0 token1 token2 token3 "
ERRORS: dict[ErrorShape, dict[str, Any]] = {
    ErrorShape.OPENAI: {"error": {"message": str, "type": str, "param": object, "code": str}},
    ErrorShape.ANTHROPIC: {"type": str, "error": {"type": str, "message": str}},
}
ERRORS[ErrorShape.RESPONSE] = ERRORS[ErrorShape.OPENAI]
EVENT_NAMES = {
    ErrorShape.OPENAI: b"",
    ErrorShape.ANTHROPIC: b"event: error\n",
    ErrorShape.RESPONSE: b"event: response.failed\n",
}


def named(rows: list[Dialect]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[f"{row.method} {row.path}" for row in rows])


def path_of(row: Dialect) -> str:
    return row.path.replace("{response_id}", "resp_1").replace("{model_id:path}", "org/model")


async def post(rig: Any, url: str, row: Dialect, **fields: Any) -> tuple[aiohttp.ClientResponse, bytes]:
    headers = {"X-Autellix-Program-ID": "p"}
    async with rig.client.post(
        url + row.path, json={**BODIES[row.path], **fields}, headers=headers
    ) as response:
        return response, await response.read()


@named(IN_FULL)
async def test_an_answer_is_the_engines_with_a_receipt(serve: Any, row: Dialect) -> None:
    async with serve(FakeBehaviour(extra_fields={"future": [1, 2]})) as rig:
        direct = json.loads((await post(rig, rig.engine.base_url, row))[1])
        response, content = await post(rig, rig.url, row)
        through = json.loads(content)
        receipt = through.pop("autellix")
        assert {**direct, "id": ""} == {**through, "id": ""}
        assert response.headers["X-Autellix-Program-ID"] == receipt["program_id"] == "p"
        assert response.headers["X-Autellix-Call-ID"] == receipt["call_id"]
        assert response.headers["X-Autellix-Engine"] == "fake-0"
        assert response.headers["X-Autellix-Identity-Source"] == "program-header"
        assert response.headers["X-Autellix-Queue-Level"] == "1"
        # Without identity in the engine, reports cannot be matched to calls.
        assert receipt["estimated"] is not row.takes_identity
        assert ("vllm_xargs" in rig.engine.requests[-1].json) is row.takes_identity
        program = await rig.store.program("p")
        assert program is not None and program.finished_calls == 1


@named(STREAMING)
async def test_a_stream_is_the_engines_with_a_comment_before_its_last_event(serve: Any, row: Dialect) -> None:
    async with serve() as rig:
        direct = (await post(rig, rig.engine.base_url, row, stream=True))[1]
        through = (await post(rig, rig.url, row, stream=True))[1].replace(b"fake-1", b"fake-0")
        *_, comment, last, _ = through.split(b"\n\n")
        assert json.loads(comment.removeprefix(b": autellix "))["estimated"] is False
        assert read_event(last, is_typed=True).kind in row.stream_ends
        through = through.replace(comment + b"\n\n", b"")
        assert RESPONSE_ID.sub(b"resp_", through) == RESPONSE_ID.sub(b"resp_", direct)


@named(STREAMING)
async def test_a_stream_is_the_engines_alone_for_clients_without_our_headers(
    serve: Any, row: Dialect
) -> None:
    """Some parse each line that is not blank as data, among them vLLM's multi-turn benchmark."""
    async with serve() as rig:
        body = {**BODIES[row.path], "stream": True}
        async with rig.client.post(rig.url + row.path, json=body) as response:
            lines = (await response.read()).splitlines()
    assert not [line for line in lines if line.startswith(b":")]


@named(STREAMING)
async def test_a_stream_that_breaks_off_ends_with_an_error_event(serve: Any, row: Dialect) -> None:
    async with serve(FakeBehaviour(fault=Fault.RESET_MID_STREAM)) as rig:
        events = (await post(rig, rig.url, row, stream=True))[1].split(b"\n\n")
        (error,) = [event for event in events if b'"error"' in event]
        name, _, data = error.rpartition(b"data: ")
        assert name == EVENT_NAMES[row.errors]
        found = json.loads(data)
        if row.errors is ErrorShape.RESPONSE:
            assert (found.pop("type"), found.pop("response")["status"]) == ("response.failed", "failed")
        assert_shape(found, row.errors)
        assert [read_event(event, is_typed=True).kind in row.stream_ends for event in events].count(True) == (
            row.errors is ErrorShape.RESPONSE
        )


@named([row for row in DIALECTS if row.makes_call])
async def test_errors_of_the_gateway_have_the_shape_of_the_path(serve: Any, row: Dialect) -> None:
    async with serve(engine_settings={"max_restarts": 0}) as rig:
        async with rig.client.post(rig.url + row.path, data=b"[") as response:
            assert response.status == 400
            assert_shape(await response.json(), row.errors)
        async with rig.client.put(rig.url + row.path) as response:
            assert response.status == 405
            assert_shape(await response.json(), row.errors)
        await rig.engine.kill()
        async with rig.client.post(rig.url + row.path, data=b"{}") as response:
            assert response.status == 503
            assert_shape(await response.json(), row.errors)


def assert_shape(error: dict[str, Any], shape: ErrorShape) -> None:
    expected = ERRORS[shape]
    assert error.keys() == expected.keys()
    # In OpenAI's, an error event also says that nothing is to be repeated.
    assert error["error"].keys() - {"retryable"} == expected["error"].keys()
    assert isinstance(error["error"]["message"], str)


@named([row for row in DIALECTS if not row.makes_call])
async def test_pass_through_requests_reach_the_engine_unchanged(serve: Any, row: Dialect) -> None:
    async with serve() as rig:
        target = path_of(row) + "?starting_after=3&beta=true"
        body = b"" if row.method == "GET" else b'{"a": 1.50, "vllm_xargs": 2}'
        async with rig.client.request(row.method, rig.url + target, data=body) as response:
            assert response.status == 200
            answer = await response.json()
        assert rig.engine.requests[-1].body == body
        if row.path != "/v1/models":
            assert answer == {"method": row.method, "target": target}
        assert await all_programs(rig.store) == []


async def test_an_escaped_slash_in_an_id_stays_escaped(serve: Any) -> None:
    def retrieve(url: str) -> Any:
        with openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
            return client.models.retrieve("org/model").to_dict()

    async with serve() as rig:
        answer = await asyncio.to_thread(retrieve, rig.url)
        assert answer["target"] == "/v1/models/org%2Fmodel"


@pytest.mark.parametrize("path", ["/v1/models/%2e%2e/pause", "/v1/models/a%2F..%2F..%2Fpause"])
async def test_a_path_with_dot_segments_is_refused(serve: Any, path: str) -> None:
    async with serve() as rig:
        # A raw request: clients resolve dot segments themselves.
        host, port = rig.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 400 ") and b"dot segment" in answer
        assert rig.engine.requests == []


async def test_the_official_anthropic_client_is_served(serve: Any) -> None:
    # Here, for it takes seconds to import.
    import anthropic

    hello: dict[str, Any] = {"model": "m", **BODIES["/v1/messages"]}

    async with (
        serve() as rig,
        anthropic.AsyncAnthropic(
            base_url=rig.url, api_key="k", max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        answer = await client.messages.create(**hello)
        assert answer.content[0].to_dict() == {"type": "text", "text": TOKENS}
        sent = rig.engine.requests[-1].headers
        assert sent["authorization"] == "Bearer k" and "anthropic-version" in sent
        async with client.messages.stream(**hello) as stream:
            assert "".join([text async for text in stream.text_stream]) == TOKENS
            assert (await stream.get_final_message()).usage.output_tokens == 4
        with pytest.raises(anthropic.BadRequestError, match="X-Autellix-Program-ID"):
            await client.messages.create(**hello, extra_headers={"X-Autellix-Program-ID": "x" * 257})
        rig.engine.behaviour = FakeBehaviour(fault=Fault.RESET_MID_STREAM)
        events = await client.messages.create(**hello, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="not reachable"):
            async for _ in events:
                pass


async def test_the_official_openai_client_streams_responses(serve: Any) -> None:
    async with (
        serve() as rig,
        openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k", _strict_response_validation=True) as client,
    ):
        answer = await client.responses.create(model="m", input="hello")
        assert answer.output_text == TOKENS
        events = [e async for e in await client.responses.create(model="m", input="hello", stream=True)]
        assert [event.type for event in events[:2]] == ["response.created", "response.output_text.delta"]
        assert events[-1].type == "response.completed" and events[-1].response.output_text == TOKENS
        vectors = await client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
        assert [vector.embedding for vector in vectors.data] == [[0.5, -0.5]] * 2


@named([row for row in IN_FULL if row.takes_identity])
@pytest.mark.parametrize("is_streaming", [False, True])
async def test_tokens_are_charged_in_every_dialect(serve: Any, row: Dialect, is_streaming: bool) -> None:
    async with serve(FakeBehaviour(sends_reports=False), service="tokens", report_wait_s=0.0) as rig:
        fields = {"stream": is_streaming, "stream_options": {"include_usage": True}}
        await post(rig, rig.url, row, **fields)
        program = await rig.store.program("p")
        # Four tokens came out, each worth two that went in.
        prompt_tokens = program.service_s / 0.005 - 8
        assert prompt_tokens == pytest.approx(round(prompt_tokens)) and prompt_tokens >= 1
