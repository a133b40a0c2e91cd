"""The class of a program: its name, or a hash of what all its kind begin with."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from autellix_backend.identity.program_class import (
    MAX_HASHED_BYTES,
    MIN_PREFIX_BYTES,
    UNNAMED,
    prefix_id,
    program_class,
)
from autellix_backend.raw_json import MAX_READ_BYTES
from autellix_backend.vllm_plugin.context import ContextIndex

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


def test_the_work_is_bounded() -> None:
    long = "x" * MAX_HASHED_BYTES
    assert of(system=long + "a") == of(system=long + "b") != of(system="x")
    assert of(messages=[SYSTEM, {**USER, "content": "x" * MAX_READ_BYTES}]) == UNNAMED


def prefix_of(**values: Any) -> str:
    return prefix_id(fields(**values))


LONG = "word " * MIN_PREFIX_BYTES


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "system", "content": LONG}, USER]},
        {"messages": [USER], "tools": tools(*(f"tool-{number}" for number in range(40)))},
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [SYSTEM, {"role": "user", "content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
        {"instructions": LONG, "input": "hello"},
        {"input": LONG},
        {"prompt": LONG},
    ],
)
def test_prompts_that_begin_alike_have_one_prefix(body: dict[str, Any]) -> None:
    longer = {**body, "messages": [*body.get("messages", ()), {"role": "user", "content": "and more"}]}

    assert prefix_of(**body)
    assert prefix_of(**body, max_tokens=5) == prefix_of(**body)
    if "messages" in body:
        assert prefix_of(**longer) == prefix_of(**body)


def test_rollouts_of_one_task_have_a_prefix_of_their_own() -> None:
    """Behind one line of instructions, which all tasks share."""
    tasks = [LONG, LONG, "other " + LONG]
    found = [prefix_of(messages=[SYSTEM, {"role": "user", "content": task}]) for task in tasks]

    assert found[0] == found[1] != found[2]
    assert "" not in found


def test_other_instructions_and_tools_are_another_prefix() -> None:
    named = [tools(*(f"{kind}-{number}" for number in range(40))) for kind in ("read", "write")]
    found = {prefix_of(messages=[{"role": "system", "content": LONG}], tools=each) for each in named}
    found |= {prefix_of(messages=[{"role": "system", "content": LONG + end}]) for end in ("a", "b")}

    assert len(found) == 4


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": [SYSTEM, USER]}, {"prompt": "hello"}])
def test_a_short_start_is_no_prefix(body: dict[str, Any]) -> None:
    assert prefix_of(**body) == ""


def claude(
    line: str = "", task: str = "hello", end: str = "", who: str = "You are Claude Code."
) -> dict[str, Any]:
    """Return the first call of Claude Code, in its own dialect."""
    texts = [*([line] if line else []), who, LONG + end]
    system = [{"type": "text", "text": text} for text in texts]
    reminder = {"type": "text", "text": "<system-reminder>The date is ...</system-reminder>"}
    content = [reminder, {"type": "text", "text": task}]
    return {"system": system, "messages": [{"role": "user", "content": content}]}


def line(mark: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.197.{mark}; cc_entrypoint=cli; cch={mark}00;"


def forwarded(line: str) -> dict[str, Any]:
    """Return the same as a proxy turns it into a chat."""
    system = f"{line}\nYou are Claude Code.\n{LONG}"
    return {"messages": [{"role": "system", "content": system}, USER]}


def test_claude_codes_billing_line_is_part_of_no_class_and_no_prefix() -> None:
    bodies = [claude(), *(claude(line(mark), mark) for mark in ("e2c", "40a", "721"))]
    bodies += [forwarded(line(mark)) for mark in ("e4e", "9a8")]
    assert len({of(**body) for body in bodies}) == 1
    assert len({prefix_of(**body) for body in bodies}) == 1
    assert of(**claude(line("e2c"), end="!")) != of(**claude(line("e2c")))
    assert prefix_of(**claude(line("e2c"), end="!")) != prefix_of(**claude(line("e2c")))


CONVERTED = """
import json, sys
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
made = [AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest(**body))
        for body in json.load(sys.stdin)]
print("\\n" + json.dumps([each.model_dump(mode="json", include={"messages", "tools"}) for each in made]))
"""
BLOCK = 16


def chat_of_vllm(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what vLLM makes of messages, before its template does the rest."""
    program = [sys.executable, "-c", CONVERTED]
    written = subprocess.run(program, input=json.dumps(bodies), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(written.stdout.splitlines()[-1])
    return found


@pytest.mark.vllm
def test_the_prefix_is_that_of_the_engines_blocks() -> None:
    pytest.importorskip("vllm")
    tools = [{"name": f"tool-{number}", "input_schema": {"type": "object"}} for number in range(40)]
    other = "You are a sub-agent."
    calls = [
        claude(line("e2c"), "Fix it.") | {"tools": tools},
        claude(line("40a"), "Now write the docs.") | {"tools": tools},
        claude("", "Review it.") | {"tools": tools},
        claude(line("721"), "Fix it.", who=other) | {"tools": tools},
        claude(line("9a8"), "Review it.", who=other) | {"tools": tools},
    ]
    index = ContextIndex(BLOCK)
    blocks: list[list[str]] = []
    for made in chat_of_vllm([{"model": "m", "max_tokens": 9, **call} for call in calls]):
        system, *rest = made["messages"]
        # As templates have it: the instructions and the tools, then what was said.
        text = system["content"] + json.dumps([made["tools"], rest])
        parts = (text[at : at + BLOCK] for at in range(0, len(text) - BLOCK, BLOCK))
        blocks.append(list(accumulate(parts, lambda chain, part: str(hash((chain, part))), initial=""))[1:])
    for _ in range(2):
        # A program learns of its prefix from the next one of its kind.
        found = [index.arrive(str(at), f"{at}", each, len(each) * BLOCK) for at, each in enumerate(blocks)]
    of_engine = [context.prefix for context in found]
    of_gateway = [prefix_of(**call) for call in calls]
    assert all(of_engine)
    assert all(of_gateway)
    assert [of_engine.index(each) for each in of_engine] == [of_gateway.index(each) for each in of_gateway]
