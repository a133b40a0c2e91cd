"""The official clients get through the gateway what vLLM itself gives them, but for listed differences."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import openai
import pydantic
import pytest
from tests.serving import serving_thread

from autellix_backend.assembly import create_app
from autellix_backend.settings import GatewaySettings, Settings

if TYPE_CHECKING:
    import anthropic

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

DIFFERENCES = frozenset(
    {
        # Made anew for each call
        *("id", "call_id", "item_id", "tool_call_id", "request_id"),
        *("created", "created_at", "completed_at"),
        # Of the engine's prefix cache, which the first of two equal calls fills
        *("cached_tokens", "cache_read_input_tokens"),
        # How many events a stream was cut into so far: the engine puts together what is ready at once
        "sequence_number",
        # The receipt
        "autellix",
    }
)
"""Fields of answers that may differ; docs/reference/http-api.md lists them."""

INPUT_SIZE = re.compile(r"<dict of \d+ items>")
"""How vLLM's complaint of a missing field ends; the body that it sees holds our vllm_xargs."""

ENDS = frozenset({"finish_reason", "stop_reason"})
"""Fields that only the last chunk of a text has."""

TEXTS = (".content", ".text", ".delta", ".partial_json", ".arguments")
"""Where an event of a stream has its part of a text."""

MESSAGES: Any = [{"role": "user", "content": "Tell me about queues."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "size": {"enum": [1, 2]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells the weather", "parameters": SCHEMA},
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
CLAUDE_TOOL: Any = {"name": "weather", "description": "Tells the weather", "input_schema": SCHEMA}
EASY_TOOL: Any = {"name": "now", "description": "Tells the time", "input_schema": {"enum": [{}]}}
GREEDY = {"temperature": 0}
ENDING: Any = {"temperature": 1, "seed": 5, "max_tokens": 512}
"""A sampled answer of the untrained model ends where the schema allows; a greedy one may repeat a blank."""
TOO_LONG = "word " * 100_000


class Place(pydantic.BaseModel):
    """What structured output is parsed into."""

    city: Literal["Oslo", "Rome"]
    size: Literal[1, 2]


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    defaults = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(**{"model": "", **defaults, **fields})
    return list(answer) if fields.get("stream") else answer


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    defaults = {"prompt": "Queues are", "max_tokens": 12, "temperature": 0}
    answer = client.completions.create(**{"model": "", **defaults, **fields})
    return list(answer) if fields.get("stream") else answer


def respond(client: openai.OpenAI, **fields: Any) -> Any:
    defaults = {"input": "Tell me about queues.", "max_output_tokens": 12, "temperature": 0}
    answer = client.responses.create(**{"model": "", **defaults, **fields})
    return list(answer) if fields.get("stream") else answer


def parse(client: openai.OpenAI) -> Any:
    fields: Any = {"messages": MESSAGES, **ENDING}
    parsed = client.chat.completions.parse(model="", response_format=Place, **fields)
    assert isinstance(parsed.choices[0].message.parsed, Place)
    return parsed


def stream_helper(client: openai.OpenAI) -> Any:
    fields: Any = {"messages": MESSAGES, "response_format": Place, **ENDING}
    with client.chat.completions.stream(model="", **fields) as stream:
        return {event.type for event in stream}, stream.get_final_completion()


def message(client: anthropic.Anthropic, **fields: Any) -> Any:
    defaults = {"messages": MESSAGES, "max_tokens": 12, "extra_body": GREEDY}
    answer = client.messages.create(**{"model": "", **defaults, **fields})
    return list(answer) if fields.get("stream") else answer


def message_helper(client: anthropic.Anthropic) -> Any:
    with client.messages.stream(model="", messages=MESSAGES, max_tokens=12, extra_body=GREEDY) as stream:
        return "".join(stream.text_stream), stream.get_final_message()


OPENAI: dict[str, Callable[[openai.OpenAI], Any]] = {
    "chat": chat,
    "chat, streamed": lambda c: chat(c, stream=True),
    "chat, streamed with usage": lambda c: chat(c, stream=True, stream_options={"include_usage": True}),
    "chat, by the stream helper": stream_helper,
    "logprobs": lambda c: chat(c, logprobs=True, top_logprobs=3),
    "logprobs, streamed": lambda c: chat(c, logprobs=True, top_logprobs=3, stream=True),
    "several choices": lambda c: chat(c, n=3, temperature=1, seed=7),
    "seed": lambda c: chat(c, temperature=1, seed=11),
    "stop": lambda c: chat(c, stop=["e"], max_tokens=64),
    "tools, the model's choice": lambda c: chat(c, tools=[WEATHER], tool_choice="auto"),
    "tools, named": lambda c: chat(c, tools=[WEATHER], tool_choice=NAMED, max_tokens=64),
    "tools, required": lambda c: chat(c, tools=[WEATHER], tool_choice="required", max_tokens=64),
    "tools, named, streamed": lambda c: chat(
        c, tools=[WEATHER], tool_choice=NAMED, max_tokens=64, stream=True
    ),
    "structured output": lambda c: chat(c, response_format=FORMAT, **ENDING),
    "structured output, streamed": lambda c: chat(c, response_format=FORMAT, **ENDING, stream=True),
    "structured output, parsed": parse,
    "completion": complete,
    "completion, streamed": lambda c: complete(c, stream=True, stream_options={"include_usage": True}),
    "completion, echo and logprobs": lambda c: complete(c, echo=True, logprobs=2),
    "completion, several prompts": lambda c: complete(
        c, prompt=["Queues are", "Trees are"], n=2, seed=3, temperature=1
    ),
    "completion, token ids": lambda c: complete(c, prompt=[[5, 6, 7], [8, 9]]),
    "response": respond,
    "response, streamed": lambda c: respond(c, stream=True),
    "response, structured": lambda c: respond(
        c,
        max_output_tokens=64,
        text={"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}},
    ),
    "models": lambda c: list(c.models.list()),
}
"""Calls that succeed; their clients are told the model in place of an empty name."""

OPENAI_ERRORS: dict[str, tuple[int, Callable[[openai.OpenAI], Any]]] = {
    "unknown model": (404, lambda c: c.chat.completions.create(model="nobody", messages=MESSAGES)),
    "bad type": (400, lambda c: chat(c, temperature="hot")),
    "out of range": (400, lambda c: chat(c, top_p=7)),
    "no messages": (400, lambda c: c.post("/chat/completions", body={"model": "m"}, cast_to=object)),
    "context too long": (400, lambda c: chat(c, messages=[{"role": "user", "content": TOO_LONG}])),
    "context too long, streamed": (400, lambda c: complete(c, prompt=TOO_LONG, stream=True)),
    "unknown previous response": (404, lambda c: respond(c, previous_response_id="resp_none")),
    "unknown response": (404, lambda c: c.responses.retrieve("resp_none")),
    "cancel of an unknown response": (404, lambda c: c.responses.cancel("resp_none")),
    "one model": (404, lambda c: c.models.retrieve("org/nobody")),
    "embeddings of a model that has none": (404, lambda c: c.embeddings.create(model="", input=["a"])),
}
"""Status and call of what the engine refuses."""

ANTHROPIC: dict[str, Callable[[anthropic.Anthropic], Any]] = {
    "message": message,
    "message, streamed": lambda c: message(c, stream=True),
    "message, by the stream helper": message_helper,
    "message, system and stop": lambda c: message(c, system="Be brief.", stop_sequences=["e"]),
    "message, tool": lambda c: message(
        c, tools=[EASY_TOOL], tool_choice={"type": "tool", "name": "now"}, max_tokens=64
    ),
    "message, tool, streamed": lambda c: message(
        c, tools=[CLAUDE_TOOL], tool_choice={"type": "tool", "name": "weather"}, max_tokens=64, stream=True
    ),
    "count of tokens": lambda c: c.messages.count_tokens(model="", messages=MESSAGES),
}

ANTHROPIC_ERRORS: dict[str, tuple[int, Callable[[anthropic.Anthropic], Any]]] = {
    "unknown model": (404, lambda c: c.messages.create(model="nobody", messages=MESSAGES, max_tokens=4)),
    "bad type": (400, lambda c: message(c, extra_body={"temperature": "hot"})),
    "context too long": (400, lambda c: message(c, messages=[{"role": "user", "content": TOO_LONG}])),
}


@pytest.fixture(scope="module")
def urls(live_engine: Any) -> Iterator[tuple[str, str]]:
    """Yield the engine's address and that of a gateway before it."""
    settings = Settings(gateway=GatewaySettings(report_wait_s=5.0))
    with serving_thread(create_app(settings, live_engine)) as url:
        yield live_engine.base_url, url


@pytest.fixture(scope="module")
def model(urls: tuple[str, str]) -> str:
    with openai.OpenAI(base_url=urls[0] + "/v1", api_key="k") as client:
        return client.models.list().data[0].id


def openai_client(url: str, model: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0, http_client=naming(openai, model))


def anthropic_client(url: str, model: str) -> anthropic.Anthropic:
    # Here, for it takes seconds to import.
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, http_client=naming(anthropic, model))


def naming(package: Any, model: str) -> Any:
    """Return the package's own HTTP client, with the model's name put into bodies that have an empty one."""

    def name(request: Any) -> None:
        body = request.content.replace(b'"model":""', f'"model":"{model}"'.encode())
        request.stream = type(request.stream)(body)
        request.headers["content-length"] = str(len(body))

    return package.DefaultHttpxClient(event_hooks={"request": [name]})


def plain(value: Any) -> Any:
    """Return an answer as plain data without the listed differences."""
    if isinstance(value, pydantic.BaseModel):
        value = value.model_dump(warnings=False)
    if isinstance(value, str):
        return INPUT_SIZE.sub("", value)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if name not in DIFFERENCES}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def use(call: Callable[[Any], Any], client: Any) -> Any:
    with client:
        return call(client)


def summed(events: list[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return what a stream adds up to, wherever it was cut: its kinds of events, and texts by place."""
    texts: dict[str, list[Any]] = {}

    def emptied(value: Any, place: str) -> Any:
        if isinstance(value, dict):
            return {name: emptied(part, f"{place}.{name}") for name, part in value.items()}
        is_logprobs = isinstance(value, list) and place.endswith((".logprobs.content", ".logprobs"))
        if is_logprobs or (isinstance(value, str) and place.endswith(TEXTS)):
            texts.setdefault(place, []).extend(value)
            return None
        return [emptied(part, place) for part in value] if isinstance(value, list) else value

    parts = itertools.chain.from_iterable(parted(emptied(event, "")) for event in events)
    return [event for event, _ in itertools.groupby(parts)], texts


def parted(event: Any) -> Iterator[Any]:
    """Yield a chunk that ends a text in two, for a busy engine may put all of the text into it."""
    choices = event.get("choices") if isinstance(event, dict) else None
    if choices and any(choice.get("finish_reason") for choice in choices):
        yield {**event, "choices": [{**choice, **dict.fromkeys(ENDS & choice.keys())} for choice in choices]}
    yield event


def result(call: Callable[[Any], Any], client: Any) -> Any:
    answer = plain(use(call, client))
    return summed(answer) if isinstance(answer, list) else answer


def refusal(call: Callable[[Any], Any], client: Any, kind: Any) -> tuple[int, Any]:
    with pytest.raises(kind) as caught:
        use(call, client)
    return caught.value.status_code, plain(caught.value.body)


@pytest.mark.parametrize("case", OPENAI)
def test_the_openai_client_gets_the_same(urls: tuple[str, str], model: str, case: str) -> None:
    direct, through = (result(OPENAI[case], openai_client(url, model)) for url in urls)
    assert through == direct


@pytest.mark.parametrize("case", OPENAI_ERRORS)
def test_the_openai_client_gets_the_same_error(urls: tuple[str, str], model: str, case: str) -> None:
    status, call = OPENAI_ERRORS[case]
    direct, through = (refusal(call, openai_client(url, model), openai.APIStatusError) for url in urls)
    assert through == direct
    assert direct[0] == status


@pytest.mark.parametrize("case", ANTHROPIC)
def test_the_anthropic_client_gets_the_same(urls: tuple[str, str], model: str, case: str) -> None:
    direct, through = (result(ANTHROPIC[case], anthropic_client(url, model)) for url in urls)
    assert through == direct


@pytest.mark.parametrize("case", ANTHROPIC_ERRORS)
def test_the_anthropic_client_gets_the_same_error(urls: tuple[str, str], model: str, case: str) -> None:
    import anthropic

    status, call = ANTHROPIC_ERRORS[case]
    direct, through = (refusal(call, anthropic_client(url, model), anthropic.APIStatusError) for url in urls)
    assert through == direct
    assert direct[0] == status


def test_the_asynchronous_client_gets_the_same(urls: tuple[str, str], model: str) -> None:
    async def use_both(url: str) -> Any:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k") as client:
            fields: Any = {"model": model, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
            answer = await client.chat.completions.create(**fields)
            stream = await client.chat.completions.create(**fields, stream=True)
            return plain(answer), summed(plain([chunk async for chunk in stream]))

    direct, through = (asyncio.run(use_both(url)) for url in urls)
    assert through == direct


@pytest.mark.parametrize("case", ["response", "response, streamed", "message", "message, streamed"])
def test_every_dialect_is_charged_by_the_engines_report(urls: tuple[str, str], model: str, case: str) -> None:
    headers = {"X-Autellix-Program-ID": case}
    if case in OPENAI:
        use(OPENAI[case], openai_client(urls[1], model).with_options(default_headers=headers))
    else:
        use(ANTHROPIC[case], anthropic_client(urls[1], model).with_options(default_headers=headers))
    with openai.OpenAI(base_url=urls[1] + "/autellix/v1", api_key="k") as client:
        (call,) = client.get(f"/programs/{quote(case)}", cast_to=dict[str, Any])["calls"]
    assert (call["estimated"], call["output_tokens"]) == (False, 12)
