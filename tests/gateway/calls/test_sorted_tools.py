"""Tools in the order of their names, whatever order a client sends."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from autellix_backend.engines.base import EngineKind
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.calls.outbound import engine_body
from autellix_backend.gateway.calls.sorted_tools import sorted_tools
from autellix_backend.raw_json import MAX_OBJECTS

NAMES = ("bash", "edit", "glob", "grep", "read")


def chat(name: str) -> dict[str, Any]:
    parameters = {"z": 1e300, "type": "object", "a": [0.10, 18446744073709551616]}
    return {"type": "function", "function": {"name": name, "description": "ü\n", "parameters": parameters}}


def flat(name: str) -> dict[str, Any]:
    return {"input_schema": {}, "name": name}


def raw(tools: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(tools).encode())


def sorted_json(tools: Any) -> Any:
    return json.loads(bytes(sorted_tools(raw(tools))))


@pytest.mark.parametrize("form", [chat, flat])
def test_every_order_becomes_the_same_bytes(form: Any) -> None:
    tools = [form(name) for name in NAMES]
    orders = [random.Random(seed).sample(tools, len(tools)) for seed in range(10)]
    assert len({json.dumps(order) for order in orders}) > 5
    assert len({bytes(sorted_tools(raw(order))) for order in orders}) == 1
    assert sorted_json(orders[0]) == json.loads(json.dumps(tools))


def test_a_tool_stays_as_it_is_byte_for_byte() -> None:
    texts = ['{"name" : "b","n":1.0e5, "d":"\\u00fc\\/"}', '{ "d":0.10,"name":"a"}']
    found = bytes(sorted_tools(msgspec.Raw(f"[ {', '.join(texts)}]".encode()))).decode()
    assert found == f"[{texts[1]},{texts[0]}]"


def test_tools_of_a_provider_go_by_their_type_and_equal_ones_stay_in_order() -> None:
    equal = [flat("b") | {"n": number} for number in (2, 1)]
    tools = [{"type": "web_search"}, *equal, {"type": "bash", "name": "x"}]
    assert sorted_json(tools) == [*equal, tools[3], tools[0]]


@pytest.mark.parametrize(
    "tools",
    [
        *(None, "x", {}, [], 7, [1, 2], [None], [[]]),
        [flat("b"), {}, flat("a")],
        [flat("b"), flat("a") | {"name": 3}],
        [flat("b"), {"function": "x", "name": "a"}],
        [{"name": "b"}, *({"name": "a"} for _ in range(MAX_OBJECTS))],
    ],
    ids=lambda tools: json.dumps(tools)[:30],
)
def test_what_is_no_list_of_named_tools_stays_as_it_is(tools: Any) -> None:
    assert bytes(sorted_tools(raw(tools))) == bytes(raw(tools))


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("sorts_tools", [True, False])
def test_only_the_calls_of_a_tenant_that_asks_for_it_are_sorted(kind: EngineKind, sorts_tools: bool) -> None:
    fields = {"model": "m", "tools": [flat("b"), flat("a")], "tool_choice": "auto"}
    body = parse_body(json.dumps(fields).encode(), CHAT_COMPLETIONS)
    sent = json.loads(engine_body(body, kind, {}, sorts_tools=sorts_tools))
    assert sent == fields | ({"tools": [flat("a"), flat("b")]} if sorts_tools else {})
    without = parse_body(b'{"model": "m"}', CHAT_COMPLETIONS)
    assert json.loads(engine_body(without, kind, {}, sorts_tools=True)) == {"model": "m"}
