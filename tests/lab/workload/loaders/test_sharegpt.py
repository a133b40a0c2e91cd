"""ShareGPT conversations as programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.sharegpt import load_sharegpt
from autellix_lab.workload.trace import ProgramTrace, TraceError

WORDS = LoadOptions(count_tokens=lambda text: len(text.split()), tokenizer="words")


def load(tmp_path: Path, content: Any) -> list[ProgramTrace]:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(content))
    return load_sharegpt(path, WORDS)


def conversation(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"id": "c1", "conversations": [{"from": who, "value": text} for who, text in messages]}


def test_each_answer_is_a_call_that_extends_the_history(tmp_path: Path) -> None:
    """New tokens are those since the last answer; what follows the last answer is left out."""
    (program,) = load(
        tmp_path,
        [
            conversation(
                ("system", "be kind"),
                ("human", "hello you there"),
                ("gpt", "hi"),
                ("human", "more"),
                ("gpt", "no more"),
                ("human", "bye"),
            )
        ],
    )
    first, second = program.calls

    assert (program.program_id, program.tokenizer, program.source) == ("c1", "words", "sharegpt")
    assert (first.prefill_tokens, first.decode_tokens, first.kind) == (5, 1, "root")
    assert (second.prefill_tokens, second.decode_tokens, second.kind) == (7, 2, "human")
    assert (second.parents, second.prefix_from, second.shared_prefix_tokens) == ((0,), 0, 6)
    assert second.gap_before_s is None


def test_answers_in_a_row_are_one(tmp_path: Path) -> None:
    """Some conversations were cut into pieces."""
    (program,) = load(tmp_path, [conversation(("human", "a b"), ("gpt", "c"), ("gpt", "d e"))])

    assert [call.decode_tokens for call in program.calls] == [3]


def test_a_conversation_without_an_answer_is_left_out(tmp_path: Path) -> None:
    """So is an empty one."""
    assert load(tmp_path, [conversation(("human", "a")), conversation()]) == []


def test_an_answer_to_nothing_has_a_prompt_of_one_token(tmp_path: Path) -> None:
    """An engine cannot run an empty prompt."""
    (program,) = load(tmp_path, [conversation(("gpt", "hello there"))])

    assert (program.calls[0].prefill_tokens, program.calls[0].decode_tokens) == (1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "sharegpt.json: file is not a JSON list of conversations"),
        ([1], "conversation 0: conversation is not a JSON object"),
        ([{"id": "x"}], "conversation 0: conversations is missing; expected a list"),
        (
            [conversation(), conversation(("human", "a"), ("cat", "b"))],
            r"conversation 1: conversations\[1\]\.from is 'cat'; expected one of assistant",
        ),
        (
            [{"conversations": [{"from": "human", "value": 1}]}],
            r"conversations\[0\]\.value is 1; expected a string",
        ),
    ],
)
def test_an_error_names_the_conversation_and_the_field(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load(tmp_path, content)
