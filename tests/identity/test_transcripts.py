"""Chats without an id are one program when they extend what is known, and never by chance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.identity.transcripts import TranscriptChain
from autellix_backend.raw_json import MAX_READ_BYTES

SYSTEM = {"role": "system", "content": "You are a coding agent."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


class Chat:
    """A chain, and calls that each want to begin the program of their number."""

    def __init__(self, **settings: Any) -> None:
        self.chain = TranscriptChain(ttl_s=10, **settings)
        self.calls = 0

    def say(self, *messages: Any, now: float = 0, scope: str = "", **fields: Any) -> str | None:
        self.calls += 1
        body = parse_body(
            json.dumps({"model": "m", "messages": messages, **fields}).encode(), CHAT_COMPLETIONS
        )
        found = self.chain.find(scope, body.fields, str(self.calls), now)
        if found is None:
            return None
        self.chain.remember(scope, found, now)
        return found.program


FIRST = (SYSTEM, user("fix the bug"))
SECOND = (*FIRST, answer("ls"), user("a.py"))
THIRD = (*SECOND, answer("cat a.py"), user("x = 1"))


def test_calls_that_extend_each_other_are_one_program_from_the_second_on() -> None:
    chat = Chat()
    assert chat.say(*FIRST) is None
    assert chat.say(*SECOND) == "2"
    assert chat.say(*THIRD) == "2"
    assert chat.say(*THIRD, answer("sed"), user("done")) == "2"


def test_claude_codes_billing_line_is_no_part_of_a_transcript() -> None:
    chat = Chat()
    lines = [f"x-anthropic-billing-header: cc_version=2.1.197.{mark}; cch={mark};" for mark in ("e2c", "40a")]
    one, other = ([{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}] for line in lines)
    assert chat.say(*SECOND[1:], system=one) == "1"
    assert chat.say(*THIRD[1:], system=other) == "1"
    assert chat.say(*THIRD[1:], system=[{"type": "text", "text": "Be long."}]) == "3"
    # As a proxy turns it into a chat.
    first, then = ({**SYSTEM, "content": f"{line}\nBe brief."} for line in lines)
    assert chat.say(first, *SECOND[1:]) == "4"
    assert chat.say(then, *THIRD[1:]) == "4"


def say_items(chat: Chat, *items: Any, **fields: Any) -> str | None:
    body = json.dumps({"model": "m", "input": items, **fields}).encode()
    chat.calls += 1
    found = chat.chain.find("", parse_body(body, CHAT_COMPLETIONS).fields, str(chat.calls), 0)
    if found is not None:
        chat.chain.remember("", found, 0)
    return None if found is None else found.program


def test_the_items_of_a_response_are_a_transcript() -> None:
    chat = Chat()
    asked = user("fix the bug")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    called = {"type": "function_call", "call_id": "call_0", "name": "ls", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_0", "output": "a.py"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    assert say_items(chat, asked) is None
    assert say_items(chat, asked, result) is None
    second = (asked, reasoning, called, result)
    assert say_items(chat, *second) == "3"
    third = (*second, said, user("and the docs"))
    assert say_items(chat, *third) == "3"
    assert say_items(chat, *third, instructions="be brief") == "5"
    assert say_items(chat, *second, called, result, previous_response_id="resp_1") == "6"
    body = {"model": "m", "input": "fix the bug"}
    assert chat.chain.find("", parse_body(json.dumps(body).encode(), CHAT_COMPLETIONS).fields, "p", 0) is None


def test_branches_of_a_transcript_and_retries_within_it_are_its_program() -> None:
    chat = Chat()
    chat.say(*SECOND)
    assert chat.say(*THIRD) == "1"
    assert chat.say(*THIRD) == "1"
    assert chat.say(*SECOND, answer("rm a.py"), user("gone")) == "1"
    assert chat.say(*THIRD, answer("sed"), user("done")) == "1"


def test_a_system_prompt_and_a_first_question_identify_nobody() -> None:
    chat = Chat()
    assert chat.say(*FIRST) is None
    assert chat.say(*FIRST) is None
    assert len(chat.chain) == 0


def test_a_transcript_that_two_programs_sent_joins_neither() -> None:
    chat = Chat()
    assert chat.say(*SECOND) == "1"
    assert chat.say(*SECOND) == "2"
    assert chat.say(*THIRD) == "3"
    assert chat.say(*SECOND) == "4"
    assert chat.say(*SECOND, answer("rm a.py"), user("gone")) == "5"
    # What only one of them has said since is its own again.
    assert chat.say(*THIRD, answer("sed"), user("done")) == "3"


def test_examples_in_the_prompt_are_no_common_program() -> None:
    chat = Chat()
    examples = (SYSTEM, user("1+1"), answer("2"))
    assert chat.say(*examples, user("2+2")) == "1"
    assert chat.say(*examples, user("3+3")) == "2"


@pytest.mark.parametrize(
    "changed",
    [{"model": "other"}, {"tools": [{"type": "function"}]}, {"system": "be brief"}, {"scope": "tenant"}],
)
def test_model_tools_system_prompt_and_tenant_are_part_of_the_transcript(changed: dict[str, Any]) -> None:
    chat = Chat()
    chat.say(*SECOND)
    assert chat.say(*THIRD, **changed) == "2"


def test_another_process_knows_nothing_of_it() -> None:
    one, other = Chat(), Chat()
    one.say(*SECOND)
    other.say(*SECOND)
    assert one.chain._programs._scopes.keys() == other.chain._programs._scopes.keys() == {""}
    assert one.chain._programs._scopes[""].keys() != other.chain._programs._scopes[""].keys()


def test_a_call_that_is_not_admitted_leaves_no_transcript() -> None:
    chain = TranscriptChain(ttl_s=10)
    body = json.dumps({"model": "m", "messages": SECOND}).encode()
    assert chain.find("", parse_body(body, CHAT_COMPLETIONS).fields, "p", 0) is not None
    assert len(chain) == 0


def test_a_tenant_cannot_displace_anothers_transcripts() -> None:
    chat = Chat(max_transcripts=4)
    chat.say(*SECOND, scope="quiet")
    for number in range(20):
        chat.say(*FIRST, answer(str(number)), user("go on"), scope="hostile")
    assert len(chat.chain) == 4
    assert chat.say(*THIRD, scope="quiet") == "1"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"messages": "text"}',
        b'{"messages": [1]}',
        b'{"messages": []}',
        b'{"messages": [{"role": 1}]}',
        b'{"prompt": "assistant"}',
    ],
)
def test_a_request_that_is_no_chat_has_no_transcript(body: bytes) -> None:
    chain = TranscriptChain(ttl_s=10)
    assert chain.find("", parse_body(body, CHAT_COMPLETIONS).fields, "p", 0) is None
    assert len(chain) == 0


def test_a_long_chat_has_no_transcript() -> None:
    chat = Chat()
    assert chat.say(answer("a"), user("x" * MAX_READ_BYTES)) is None
