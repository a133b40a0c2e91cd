"""The class of a program: its name, or a hash of what all its kind begin with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from autellix_backend.gateway.identity.program_class import (
    MAX_HASHED_BYTES,
    MAX_READ_BYTES,
    UNNAMED,
    program_class,
)

SYSTEM = {"role": "system", "content": "You are a pirate."}
USER = {"role": "user", "content": "hello"}


def fields(**values: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in values.items()}


def of(**values: Any) -> str:
    return program_class(None, fields(**values))


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


def test_a_name_is_the_class() -> None:
    assert program_class("react", fields(messages=[SYSTEM])) == "react"


def test_equal_system_prompts_and_tools_make_one_class() -> None:
    one = of(messages=[SYSTEM, USER], tools=tools("search", "read"))
    # The hash stays: classes are kept over restarts.
    assert one == "prompt-b793405d743e"
    assert one == of(messages=[SYSTEM, {**USER, "content": "bye"}], tools=tools("read", "search"))


def test_another_prompt_or_another_tool_makes_another_class() -> None:
    classes = [
        of(messages=[SYSTEM, USER]),
        of(messages=[SYSTEM, USER], tools=tools("search")),
        of(messages=[SYSTEM, USER], tools=tools("read")),
        of(messages=[{**SYSTEM, "content": "You are a cook."}, USER]),
        of(messages=[USER], tools=tools("search")),
        of(messages=[USER]),
    ]
    assert len(set(classes)) == len(classes)


def test_every_dialects_system_prompt_counts() -> None:
    text = SYSTEM["content"]
    chat = of(messages=[SYSTEM, USER])
    assert of(messages=[{"role": "developer", "content": [{"type": "text", "text": text}]}]) == chat
    assert of(system=text, messages=[USER]) == chat
    assert of(system=[{"type": "text", "text": text, "cache_control": {}}], messages=[USER]) == chat
    assert of(instructions=text, input="hello") == chat
    assert of(input=[SYSTEM, USER]) == chat
    assert of(messages=[USER], tools=tools("a")) == of(messages=[USER], tools=[{"name": "a"}])


def test_a_system_message_later_on_does_not_count() -> None:
    assert of(messages=[USER, SYSTEM]) == of(messages=[USER]) == of(prompt="hello") == UNNAMED


@pytest.mark.parametrize("value", [None, 7, "text", {"role": "system"}, [1], [{"role": 1}]])
def test_malformed_messages_and_tools_have_no_class(value: Any) -> None:
    assert of(messages=value, tools=value) == UNNAMED


def test_content_of_any_form_is_hashed() -> None:
    assert of(system={"text": "a"}) != of(system={"text": "b"})
    assert of(messages=[{"role": "system"}]) == UNNAMED


def test_the_work_is_bounded() -> None:
    long = "x" * MAX_HASHED_BYTES
    assert of(system=long + "a") == of(system=long + "b") != of(system="x")
    assert of(messages=[SYSTEM, {**USER, "content": "x" * MAX_READ_BYTES}]) == UNNAMED
