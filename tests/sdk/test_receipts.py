"""`autellix.receipt` of what clients return, and the streams of the recording backend."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import openai
import pytest

import autellix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sdk.conftest import Recording

MESSAGES: Any = [{"role": "user", "content": "x"}]


@pytest.fixture
def client(sdk: None, backend: Recording) -> Iterator[openai.OpenAI]:
    autellix.configure(backend.url)
    with openai.OpenAI(base_url=backend.url, api_key="key", max_retries=0) as client:
        yield client


def check(result: object, backend: Recording) -> None:
    found = autellix.receipt(result)
    assert found is not None
    assert found.call_id == backend.recorded[-1].call_id
    assert found.program_id == backend.recorded[-1].program_id
    assert (found.wait_s, found.service_s, found.preemptions) == (0.0, 0.0, 0)
    assert found.estimated
    assert found.level is None


def test_receipt_of_whole_answers(client: openai.OpenAI, backend: Recording) -> None:
    answer = client.chat.completions.create(model="m", messages=MESSAGES)
    check(answer, backend)
    check(answer.model_dump(), backend)
    check(client.responses.create(model="m", input="x"), backend)
    check(client.completions.create(model="m", prompt="x"), backend)
    raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    check(raw.parse(), backend)
    check(raw, backend)
    check(raw.http_response, backend)


def test_receipt_of_streams(client: openai.OpenAI, backend: Recording) -> None:
    chat = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == "hello"
    check(chat, backend)
    text = client.completions.create(model="m", prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in text) == "hello"
    check(text, backend)
    with client.responses.stream(model="m", input="x") as events:
        assert events.get_final_response().output_text == "hello"
    responses = client.responses.create(model="m", input="x", stream=True)
    assert (
        "".join(event.delta for event in responses if event.type == "response.output_text.delta") == "hello"
    )
    check(responses, backend)


async def test_receipt_of_async_streams(sdk: None, backend: Recording) -> None:
    autellix.configure(backend.url)
    async with openai.AsyncOpenAI(base_url=backend.url, api_key="key", max_retries=0) as client:
        check(await client.chat.completions.create(model="m", messages=MESSAGES), backend)
        chat = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in chat:
            pass
        check(chat, backend)


def test_receipt_of_anthropic(sdk: None, backend: Recording) -> None:
    anthropic = pytest.importorskip("anthropic")
    autellix.configure(backend.url)
    with anthropic.Anthropic(
        base_url=backend.url.removesuffix("/v1"), api_key="key", max_retries=0
    ) as client:
        arguments = {"model": "m", "max_tokens": 1, "messages": MESSAGES}
        check(client.messages.create(**arguments), backend)
        stream = client.messages.create(**arguments, stream=True)
        assert [event.type for event in stream][-1] == "message_stop"
        check(stream, backend)
        with client.messages.stream(**arguments) as manager:
            assert manager.get_final_text() == "hello"


@pytest.mark.parametrize("thing", [None, 3, "text", [], {}, {"autellix": {"call_id": "x"}}, object(), [[]]])
def test_what_has_no_receipt(thing: object) -> None:
    assert autellix.receipt(thing) is None


def test_receipt_of_a_call_to_another_server(client: openai.OpenAI, backend: Recording) -> None:
    backend.is_autellix = False
    assert autellix.receipt(client.chat.completions.create(model="m", messages=MESSAGES)) is None


def test_later_fields_are_left_out() -> None:
    fields = {"call_id": "c", "program_id": "p", "wait_s": 1.0, "service_s": 2.0, "of_the_future": 3}
    assert autellix.receipt({"autellix": fields}) == autellix.Receipt(
        call_id="c", program_id="p", wait_s=1.0, service_s=2.0
    )


@pytest.mark.skipif(importlib.util.find_spec("httpx") is None, reason="needs httpx")
def test_receipt_of_a_plain_http_answer(sdk: None, backend: Recording) -> None:
    import httpx

    autellix.configure(backend.url)
    url = backend.url + "/completions"
    answer = httpx.post(url, json={"prompt": "x"}, headers=autellix.headers(url))
    check(answer, backend)
    check(answer.json(), backend)
